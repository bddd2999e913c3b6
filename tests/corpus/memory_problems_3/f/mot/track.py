"""Track objects of the multi object tracker."""
from collections import deque

import torch


class Track:
    registry = {}
    _next_id = 1

    def __init__(self, box, crop_feature, frame):
        self.track_id = Track._next_id
        Track._next_id += 1
        self.boxes = deque([box], maxlen=30)
        self.gallery = crop_feature.unsqueeze(0).repeat(8, 1, 1, 1)
        self.last_frame = frame
        self.hits = 1
        Track.registry[self.track_id] = self

    def update(self, box, crop_feature, frame):
        self.boxes.append(box)
        self.gallery[self.hits % len(self.gallery)] = crop_feature
        self.last_frame = frame
        self.hits += 1

    def distance(self, features):
        g = self.gallery.flatten(1).mean(0)
        return torch.linalg.vector_norm(features.flatten(1) - g, dim=1)

    @classmethod
    def lookup(cls, track_id):
        return cls.registry[track_id]
