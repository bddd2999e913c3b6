"""Batched augmentations on the GPU, each of which can tell the matrix it applied (for boxes and key points)."""
import math

import torch
import torch.nn.functional as F
from torch import nn


class Augmentation(nn.Module):
    def __init__(self, p=0.5):
        super().__init__()
        self.p = p
        self._matrix = None
        self._matrix_args = None

    def make_params(self, batch):
        return {"apply": torch.rand(batch) < self.p}

    def compute_matrix(self, images, params):
        batch = images.shape[0]
        return torch.eye(3, device=images.device).expand(batch, 3, 3).contiguous()

    def apply(self, images, params):
        raise NotImplementedError

    @property
    def transform_matrix(self):
        if self._matrix is None and self._matrix_args is not None:
            self._matrix = self.compute_matrix(*self._matrix_args)
            self._matrix_args = None
        return self._matrix

    def forward(self, images):
        params = self.make_params(images.shape[0])
        self._matrix = None
        self._matrix_args = (images, params)
        chosen = params["apply"].to(images.device).view(-1, 1, 1, 1)
        return torch.where(chosen, self.apply(images, params), images)


class HorizontalFlip(Augmentation):
    def compute_matrix(self, images, params):
        matrix = super().compute_matrix(images, params)
        matrix[:, 0, 0] = -1
        matrix[:, 0, 2] = images.shape[-1] - 1
        return matrix

    def apply(self, images, params):
        return images.flip(-1)


class VerticalFlip(Augmentation):
    def compute_matrix(self, images, params):
        matrix = super().compute_matrix(images, params)
        matrix[:, 1, 1] = -1
        matrix[:, 1, 2] = images.shape[-2] - 1
        return matrix

    def apply(self, images, params):
        return images.flip(-2)


class Rotation(Augmentation):
    def __init__(self, degrees, p=0.5):
        super().__init__(p)
        self.degrees = degrees

    def make_params(self, batch):
        params = super().make_params(batch)
        params["angle"] = (2 * torch.rand(batch) - 1) * self.degrees * math.pi / 180
        return params

    def apply(self, images, params):
        cos, sin = params["angle"].cos(), params["angle"].sin()
        zero = torch.zeros_like(cos)
        theta = torch.stack([cos, -sin, zero, sin, cos, zero], dim=1).view(-1, 2, 3).to(images.device)
        grid = F.affine_grid(theta, list(images.shape), align_corners=False)
        return F.grid_sample(images, grid, align_corners=False)


class Jitter(Augmentation):
    def __init__(self, strength, p=0.8):
        super().__init__(p)
        self.strength = strength

    def make_params(self, batch):
        params = super().make_params(batch)
        params["gain"] = 1 + (2 * torch.rand(batch, 3) - 1) * self.strength
        return params

    def apply(self, images, params):
        return images * params["gain"].to(images.device)[:, :, None, None]


class Grayscale(Augmentation):
    def apply(self, images, params):
        return images.mean(dim=1, keepdim=True).expand_as(images)


class Blur(Augmentation):
    def apply(self, images, params):
        return F.avg_pool2d(images, 5, stride=1, padding=2)


class Erase(Augmentation):
    def apply(self, images, params):
        out = images.clone()
        side = images.shape[-1] // 4
        out[:, :, :side, :side] = 0
        return out
