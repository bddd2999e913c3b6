import math
from collections import defaultdict
from dataclasses import dataclass

import torch
import torch.nn.functional as F


@dataclass
class Camera:
    height: int
    width: int
    azimuth: float
    radius: float = 4.0
    focal: float = 1.2

    def rays(self, device):
        rows = torch.linspace(-0.5, 0.5, self.height, device=device)
        columns = torch.linspace(-0.5, 0.5, self.width, device=device)
        y, x = torch.meshgrid(rows, columns, indexing="ij")
        local = torch.stack([x, -y, -torch.full_like(x, self.focal)], -1).reshape(-1, 3)
        c, s = math.cos(self.azimuth), math.sin(self.azimuth)
        turn = torch.tensor([[c, 0.0, s], [0.0, 1.0, 0.0], [-s, 0.0, c]], device=device)
        directions = F.normalize(local @ turn.T, dim=-1)
        origin = torch.tensor([self.radius * s, 0.3, self.radius * c], device=device)
        return origin.expand_as(directions), directions


def composite(raw, depths):
    gaps = torch.cat([depths[:, 1:] - depths[:, :-1], torch.full_like(depths[:, :1], 1e10)], -1)
    alpha = 1.0 - torch.exp(-F.relu(raw[..., 3]) * gaps)
    through = torch.cumprod(torch.cat([torch.ones_like(alpha[:, :1]), 1.0 - alpha + 1e-10], -1), -1)[:, :-1]
    weights = alpha * through
    rgb = (weights.unsqueeze(-1) * raw[..., :3]).sum(1)
    return rgb, (weights * depths).sum(-1), weights


def render_rays(field, origins, directions, near, far, samples):
    steps = torch.linspace(near, far, samples, device=origins.device)
    depths = steps + (far - near) / samples * torch.rand(origins.size(0), samples, device=origins.device)
    points = origins.unsqueeze(1) + directions.unsqueeze(1) * depths.unsqueeze(-1)
    raw = field(points, directions)
    rgb, depth, weights = composite(raw, depths)
    return {"rgb": rgb, "depth": depth, "opacity": weights.sum(-1), "weights": weights, "depths": depths, "raw": raw}


@torch.no_grad()
def render_view(field, camera, device, near=2.0, far=6.0, samples=128, chunk=4096):
    origins, directions = camera.rays(device)
    collected = defaultdict(list)
    for o, d in zip(origins.split(chunk), directions.split(chunk)):
        for key, value in render_rays(field, o, d, near, far, samples).items():
            collected[key].append(value)
    image = {key: torch.cat(values) for key, values in collected.items()}
    shape = (camera.height, camera.width)
    return image["rgb"].view(*shape, 3), image["depth"].view(shape), image["opacity"].view(shape)
