"""Cameras, rays and the radiance field."""
import math

import torch
from torch import nn


def pose_spherical(theta, phi, radius):
    theta, phi = math.radians(theta), math.radians(phi)
    origin = torch.tensor([radius * math.cos(phi) * math.sin(theta), radius * math.sin(phi),
                           radius * math.cos(phi) * math.cos(theta)])
    return origin


def camera_rays(origin, height, width, focal, device):
    v, u = torch.meshgrid(torch.arange(height, device=device), torch.arange(width, device=device), indexing="ij")
    directions = torch.stack([(u - width / 2) / focal, (v - height / 2) / focal, -torch.ones_like(u, dtype=torch.float32)], -1)
    directions = directions.reshape(-1, 3)
    return torch.cat([origin.to(device).expand_as(directions), directions / directions.norm(dim=-1, keepdim=True)], dim=1)


class RadianceField(nn.Module):
    def __init__(self, frequencies=6, width=64):
        super().__init__()
        self.register_buffer("scales", 2.0 ** torch.arange(frequencies))
        self.trunk = nn.Sequential(nn.Linear(6 * frequencies, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.sigma, self.rgb = nn.Linear(width, 1), nn.Linear(width, 3)

    def forward(self, points):
        angles = (points.unsqueeze(-1) * self.scales).flatten(-2)
        hidden = self.trunk(torch.cat([angles.sin(), angles.cos()], dim=-1))
        return self.rgb(hidden).sigmoid(), self.sigma(hidden).relu().squeeze(-1)


def volume_render(field, rays, near, far, samples):
    depths = torch.linspace(near, far, samples, device=rays.device)
    points = rays[:, None, :3] + rays[:, None, 3:] * depths[:, None]
    rgb, sigma = field(points)
    alpha = 1 - torch.exp(-sigma * (far - near) / samples)
    transmittance = torch.cumprod(torch.cat([torch.ones_like(alpha[:, :1]), 1 - alpha[:, :-1] + 1e-10], 1), dim=1)
    weights = alpha * transmittance
    return (weights.unsqueeze(-1) * rgb).sum(dim=1), (weights * depths).sum(dim=1)
