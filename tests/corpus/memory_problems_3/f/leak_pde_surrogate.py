#!/usr/bin/env python
"""Fourier-style surrogate for 2d diffusion, trained with a hand-rolled step function."""
import time

import torch
import torch.nn as nn

GRID = 96
BATCH = 6
ITERATIONS = 150


class SpectralMixer(nn.Module):
    def __init__(self, width, modes):
        super().__init__()
        self.modes = modes
        self.low = nn.Parameter(torch.randn(modes, GRID) / GRID)
        self.back = nn.Parameter(torch.randn(GRID, modes) / GRID)
        self.mix = nn.Conv2d(width, width, 1)

    def forward(self, u):
        coarse = self.low @ u @ self.low.T
        return self.mix(self.back @ coarse @ self.back.T)


class Surrogate(nn.Module):
    def __init__(self, width=16, depth=3, modes=24):
        super().__init__()
        self.lift = nn.Conv2d(2, width, 1)
        self.blocks = nn.ModuleList(SpectralMixer(width, modes) for _ in range(depth))
        self.skip = nn.ModuleList(nn.Conv2d(width, width, 1) for _ in range(depth))
        self.project = nn.Sequential(nn.Conv2d(width, 32, 1), nn.GELU(), nn.Conv2d(32, 1, 1))

    def forward(self, u0, kappa):
        x = self.lift(torch.cat([u0, kappa], dim=1))
        for block, skip in zip(self.blocks, self.skip):
            x = torch.nn.functional.gelu(block(x) + skip(x))
        return self.project(x)


def laplacian(u):
    p = torch.nn.functional.pad(u, (1, 1, 1, 1), mode="replicate")
    return p[..., 2:, 1:-1] + p[..., :-2, 1:-1] + p[..., 1:-1, 2:] + p[..., 1:-1, :-2] - 4 * u


def make_training_step(model, optimizer, dt=0.05):
    """Returns step(u0, kappa) and a function with the residual statistics so far."""
    residuals = []

    def step(u0, kappa):
        u1 = model(u0, kappa)
        residual = u1 - u0 - dt * kappa * laplacian(0.5 * (u0 + u1))
        loss = residual.pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        residuals.append(residual.detach().squeeze(1))
        return loss.detach()

    def statistics():
        last = residuals[-1]
        first = residuals[0]
        return last.abs().amax().item(), (last.std() / (first.std() + 1e-12)).item()

    return step, statistics


def initial_conditions(n, generator):
    coarse = torch.rand(n, 1, 8, 8, generator=generator)
    u0 = torch.nn.functional.interpolate(coarse, (GRID, GRID), mode="bilinear")
    kappa = 0.1 + torch.rand(n, 1, 1, 1, generator=generator).expand(n, 1, GRID, GRID)
    return u0, kappa.contiguous()


def main():
    generator = torch.Generator().manual_seed(2)
    torch.manual_seed(2)
    model = Surrogate().to("cuda")
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    step, statistics = make_training_step(model, optimizer)

    begin = time.time()
    for it in range(1, ITERATIONS + 1):
        u0, kappa = initial_conditions(BATCH, generator)
        step(u0.cuda(), kappa.cuda())
        if it % 50 == 0:
            peak, ratio = statistics()
            print(f"{it} max residual {peak:.2e} ratio {ratio:.2f} {(time.time() - begin) / it:.3f}s/it")


if __name__ == "__main__":
    main()
