"""Undistorted frames of one drone flight."""
import math

import torch


class FlightFrames:
    def __init__(self, count, height=450, width=600, seed=3):
        self.count = count
        self.height = height
        self.width = width
        self.gen = torch.Generator().manual_seed(seed)

    def __len__(self):
        return self.count

    def pose(self, index):
        angle = 2 * math.pi * index / self.count
        pose = torch.eye(4)[:3]
        pose[0, 3] = 40 * math.cos(angle)
        pose[1, 3] = 40 * math.sin(angle)
        pose[2, 3] = 55.0
        return pose

    def load(self, index):
        tint = torch.rand(3, generator=self.gen)
        image = torch.empty(self.height, self.width, 3)
        image[:] = tint
        return {"image": image, "camera_to_world": self.pose(index), "image_idx": index}
