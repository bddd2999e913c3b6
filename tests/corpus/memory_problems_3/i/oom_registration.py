"""Register a pelvis CT to an X-ray by optimising the pose of rendered radiographs."""
import sys

import numpy as np
import torch
from torch import nn
import torch.nn.functional as F


def read_ct(size=256):
    """Stored values, slope and intercept as they come from the DICOM headers."""
    z, y, x = np.ogrid[:size, :size, :size]
    c = size / 2
    body = (y - c) ** 2 + 0.7 * (x - c) ** 2 < (0.42 * size) ** 2
    stored = np.where(np.broadcast_to(body, (size,) * 3), 1060, 24).astype(np.int16)
    return stored, 1.0, -1024.0


def to_attenuation(stored, slope, intercept, mu_water=0.0206):
    hounsfield = stored * np.float64(slope) + intercept
    return np.maximum(mu_water * (1 + hounsfield / 1000), 0)


def euler_matrix(angles):
    a, b, c = angles.unbind()
    zero, one = torch.zeros_like(a), torch.ones_like(a)
    rx = torch.stack([one, zero, zero, zero, a.cos(), -a.sin(), zero, a.sin(), a.cos()]).view(3, 3)
    ry = torch.stack([b.cos(), zero, b.sin(), zero, one, zero, -b.sin(), zero, b.cos()]).view(3, 3)
    rz = torch.stack([c.cos(), -c.sin(), zero, c.sin(), c.cos(), zero, zero, zero, one]).view(3, 3)
    return rz @ ry @ rx


class Radiograph(nn.Module):
    def __init__(self, volume, detector=512, steps=260, distance=1.8):
        super().__init__()
        self.register_buffer("volume", volume[None, None])
        self.steps = steps
        self.detector = detector
        u = torch.linspace(-0.9, 0.9, detector, dtype=volume.dtype)
        v, u = torch.meshgrid(u, u, indexing="ij")
        plane = torch.stack([u, v, torch.full_like(u, distance)], dim=-1).view(-1, 1, 3)
        source = torch.tensor([0.0, 0.0, -distance], dtype=volume.dtype)
        self.register_buffer("source", source)
        self.register_buffer("direction", plane - source)
        self.register_buffer("depth", torch.linspace(0.2, 0.8, steps, dtype=volume.dtype).view(1, -1, 1))

    def forward(self, angles, shift):
        rotation = euler_matrix(angles)
        source = self.source @ rotation.T + shift
        direction = self.direction @ rotation.T
        points = source + self.depth * direction
        value = F.grid_sample(self.volume, points[None, None], align_corners=True, padding_mode="zeros")
        length = self.direction.norm(dim=-1) / self.steps
        line = (value.view(-1, self.steps) * length).sum(-1)
        return torch.exp(-line).view(self.detector, self.detector)


def zero_mean(image):
    return (image - image.mean()) / (image.std() + 1e-6)


def similarity(a, b):
    return (zero_mean(a) * zero_mean(b)).mean()


def register(renderer, target, start, iterations=25):
    angles = nn.Parameter(start[:3].clone())
    shift = nn.Parameter(start[3:].clone())
    optimizer = torch.optim.Adam([{"params": [angles], "lr": 1e-2}, {"params": [shift], "lr": 5e-3}])
    for it in range(iterations):
        optimizer.zero_grad()
        loss = 1 - similarity(renderer(angles, shift), target)
        loss.backward()
        optimizer.step()
        if it % 5 == 0:
            print(f"iteration {it:3d}  1-NCC {loss.item():.5f}", flush=True)
    return torch.cat([angles, shift]).detach()


def main(device):
    attenuation = torch.from_numpy(to_attenuation(*read_ct()))
    renderer = Radiograph(attenuation).to(device)
    truth = torch.tensor([0.05, -0.02, 0.1, 0.03, 0.0, -0.04], dtype=attenuation.dtype, device=device)
    with torch.no_grad():
        target = renderer(truth[:3], truth[3:])
    for attempt in range(3):
        start = truth + 0.02 * (attempt + 1)
        pose = register(renderer, target, start)
        print("attempt", attempt, "pose error", (pose - truth).abs().max().item(), flush=True)


if __name__ == "__main__":
    main(torch.device(sys.argv[1]))
