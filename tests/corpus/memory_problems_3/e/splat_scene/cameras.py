"""Cameras and the scene that holds them."""
import math

import numpy as np
import torch
from torch import nn


class Camera(nn.Module):
    def __init__(self, uid, rotation, translation, fov, image, data_device="cuda"):
        super().__init__()
        self.uid = uid
        self.fov = fov
        self.data_device = torch.device(data_device)
        self.original_image = image.clamp(0.0, 1.0).to(self.data_device)
        self.image_height, self.image_width = self.original_image.shape[1:]
        view = torch.eye(4)
        view[:3, :3] = torch.as_tensor(rotation, dtype=torch.float32)
        view[:3, 3] = torch.as_tensor(translation, dtype=torch.float32)
        self.world_view = view.cuda()


def read_image(index, height, width):
    """Stands for PIL: one photo as a float tensor of shape (3, height, width)."""
    pixels = np.full((3, height, width), index % 256, dtype=np.uint8)
    return torch.from_numpy(pixels).float().div_(255.0)


class Scene:
    def __init__(self, views, height, width, data_device="cuda"):
        self.train_cameras = []
        for i in range(views):
            a = 2 * math.pi * i / views
            rotation = [[math.cos(a), 0, math.sin(a)], [0, 1, 0], [-math.sin(a), 0, math.cos(a)]]
            image = read_image(i, height, width)
            self.train_cameras.append(Camera(i, rotation, [0.0, 0.0, 4.0], 0.9, image, data_device))

    def get_train_cameras(self):
        return list(self.train_cameras)
