"""Fit a radiance point cloud. Points are added where the gradient is large, until the scene has its full detail."""
import math
from dataclasses import dataclass

import torch
from torch import nn


@dataclass
class Options:
    initial: int = 40_000
    iterations: int = 500
    densify_from: int = 50
    densify_until: int = 300
    densify_every: int = 25
    fraction: float = 0.25
    max_points: int = 400_000
    image: int = 200


class PointCloud:
    NAMES = ("position", "feature", "log_scale", "opacity")

    def __init__(self, n, device):
        self.position = nn.Parameter(torch.rand(n, 3, device=device) * 2 - 1)
        self.feature = nn.Parameter(torch.zeros(n, 48, device=device))
        self.log_scale = nn.Parameter(torch.full((n, 3), -4.0, device=device))
        self.opacity = nn.Parameter(torch.zeros(n, 1, device=device))
        self.optimizer = torch.optim.Adam(
            [{"params": [getattr(self, name)], "lr": 1e-3, "name": name} for name in self.NAMES], eps=1e-15)
        self.grad_sum = torch.zeros(n, device=device)

    def __len__(self):
        return self.position.shape[0]

    def _replace(self, group, tensor, extra):
        old = group["params"][0]
        state = self.optimizer.state.pop(old)
        for key in ("exp_avg", "exp_avg_sq"):
            state[key] = torch.cat([state[key], torch.zeros_like(extra)])
        new = nn.Parameter(tensor)
        group["params"][0] = new
        self.optimizer.state[new] = state
        setattr(self, group["name"], new)

    @torch.no_grad()
    def densify(self, fraction, limit):
        count = min(int(len(self) * fraction), limit - len(self))
        if count > 0:
            chosen = self.grad_sum.topk(count).indices
            for group in self.optimizer.param_groups:
                value = group["params"][0]
                extra = value[chosen]
                if group["name"] == "position":
                    extra = extra + 0.01 * torch.randn_like(extra)
                self._replace(group, torch.cat([value, extra]), extra)
        self.grad_sum = torch.zeros(len(self), device=self.position.device)
        return count


def render(points, angle, size):
    c, s = math.cos(angle), math.sin(angle)
    rotation = torch.tensor([[c, 0, s], [0, 1, 0], [-s, 0, c]], device=points.position.device)
    view = points.position @ rotation
    pixel = ((view[:, :2].detach() + 1) * 0.5 * (size - 1)).long().clamp(0, size - 1)
    color = torch.sigmoid(points.feature.view(-1, 3, 16).mean(dim=2))
    weight = torch.sigmoid(points.opacity) * torch.exp(-view[:, 2:].abs() * points.log_scale.exp().mean(1, keepdim=True))
    flat = torch.zeros(size * size, 3, device=view.device).index_add(0, pixel[:, 1] * size + pixel[:, 0], color * weight)
    return flat.view(size, size, 3)


def main():
    torch.manual_seed(0)
    opt, device = Options(), torch.device("cuda")
    points = PointCloud(opt.initial, device)
    photos = [torch.rand(opt.image, opt.image, 3) for _ in range(24)]
    for it in range(1, opt.iterations + 1):
        view = it % len(photos)
        image = render(points, 2 * math.pi * view / len(photos), opt.image)
        loss = (image - photos[view].to(device)).abs().mean()
        loss.backward()
        with torch.no_grad():
            points.grad_sum += points.position.grad.norm(dim=1)
        points.optimizer.step()
        points.optimizer.zero_grad()
        if opt.densify_from < it <= opt.densify_until and it % opt.densify_every == 0:
            added = points.densify(opt.fraction, opt.max_points)
            print(f"iteration {it}: {added} points added, {len(points)} in all")
    print(f"final loss {loss.item():.5f} with {len(points)} points")


if __name__ == "__main__":
    main()
