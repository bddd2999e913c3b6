"""Fits the map of an implicit surface with L-BFGS; the optimizer keeps directions of up to 100 iterations, which it has after two thirds of the run."""

import sys

import torch
from torch import nn


class Surface(nn.Module):
    def __init__(self, width=72, frequencies=6):
        super().__init__()
        self.register_buffer("bands", 2.0 ** torch.arange(frequencies))
        self.net = nn.Sequential(
            nn.Linear(3 + 6 * frequencies, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 1)
        )

    def forward(self, points):
        waves = (points.unsqueeze(2) * self.bands).flatten(1)
        return self.net(torch.cat([points, waves.sin(), waves.cos()], dim=1)).squeeze(1)


def distance(points):
    ball = points.norm(dim=1) - 0.6
    box = (points.abs() - 0.4).amax(dim=1)
    return torch.minimum(ball, box)


def main():
    device = sys.argv[1]
    torch.manual_seed(36)
    torch.set_num_threads(1)
    model = Surface().to(device)
    points = 2 * torch.rand(700, 3, device=device) - 1
    wanted = distance(points)
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=3, history_size=100)

    def closure():
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(points), wanted)
        loss.backward()
        return loss

    for outer in range(70):
        loss = optimizer.step(closure)
        if outer % 10 == 9:
            print(f"{outer + 1}: {loss.item():.6f}")


if __name__ == "__main__":
    main()
