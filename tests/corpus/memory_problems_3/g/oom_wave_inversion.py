"""Full-waveform inversion: recover the sound speed of tissue from ultrasound recordings."""
import argparse
import math

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

DX = 5e-4
DT = 8e-8


class SpeedModel(nn.Module):
    """Sound speed on the grid, as a smooth perturbation of water."""

    def __init__(self, n, coarse=48):
        super().__init__()
        self.n = n
        self.perturbation = nn.Parameter(torch.zeros(1, 1, coarse, coarse))

    def forward(self):
        fine = F.interpolate(self.perturbation, size=(self.n, self.n), mode="bicubic", align_corners=True)
        return 1500.0 * (1 + 0.1 * torch.tanh(fine[0, 0]))


class WaveSolver(nn.Module):
    """Second order in time and space with a sponge at the border."""

    def __init__(self, n, steps, receivers):
        super().__init__()
        self.n, self.steps = n, steps
        stencil = torch.tensor([[0.0, 1.0, 0.0], [1.0, -4.0, 1.0], [0.0, 1.0, 0.0]])
        self.register_buffer("stencil", stencil[None, None] / DX ** 2)
        ramp = torch.ones(n)
        ramp[:20] = torch.linspace(0.92, 1, 20)
        ramp[-20:] = torch.linspace(1, 0.92, 20)
        self.register_buffer("sponge", ramp[:, None] * ramp[None])
        self.register_buffer("receivers", receivers)

    def laplacian(self, p):
        return F.conv2d(p[:, None], self.stencil, padding=1)[:, 0]

    def step(self, p, p_prev, c2, source):
        p_next = 2 * p - p_prev + DT ** 2 * c2 * self.laplacian(p) + source
        return self.sponge * p_next, self.sponge * p

    def forward(self, speed, wavelet, positions):
        shots = positions.shape[0]
        c2 = speed ** 2
        p = torch.zeros(shots, self.n, self.n, device=speed.device)
        p_prev = torch.zeros_like(p)
        mask = torch.zeros_like(p)
        mask[torch.arange(shots, device=p.device), positions[:, 0], positions[:, 1]] = 1
        traces = []
        for t in range(self.steps):
            p, p_prev = self.step(p, p_prev, c2, wavelet[t] * mask)
            traces.append(p[:, self.receivers[:, 0], self.receivers[:, 1]])
        return torch.stack(traces, dim=-1)


def ring(n, count, radius):
    angle = torch.arange(count) * (2 * math.pi / count)
    centre = n / 2
    return torch.stack([centre + radius * angle.cos(), centre + radius * angle.sin()], 1).long()


def tone_burst(steps, frequency=4e5):
    t = np.arange(steps) * DT
    envelope = np.exp(-((t - 4e-6) / 1.5e-6) ** 2)
    return torch.from_numpy((envelope * np.sin(2 * np.pi * frequency * t)).astype(np.float32))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--grid", type=int, default=352)
    ap.add_argument("--time-steps", type=int, default=2400)
    ap.add_argument("--transmitters", type=int, default=64)
    ap.add_argument("--shots-per-iteration", type=int, default=8)
    ap.add_argument("--iterations", type=int, default=2)
    args = ap.parse_args()
    torch.manual_seed(0)
    device = torch.device("cuda")

    receivers = ring(args.grid, 128, 0.4 * args.grid)
    transmitters = ring(args.grid, args.transmitters, 0.4 * args.grid)
    model = SpeedModel(args.grid).to(device)
    solver = WaveSolver(args.grid, args.time_steps, receivers).to(device)
    wavelet = tone_burst(args.time_steps).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    gen = torch.Generator().manual_seed(0)
    for it in range(args.iterations):
        pick = torch.randperm(args.transmitters, generator=gen)[: args.shots_per_iteration]
        measured = torch.randn(args.shots_per_iteration, 128, args.time_steps, generator=gen).to(device)
        optimizer.zero_grad()
        simulated = solver(model(), wavelet, transmitters[pick].to(device))
        loss = F.mse_loss(simulated, measured)
        loss.backward()
        optimizer.step()
        print(f"iteration {it}: misfit {loss.item():.4e}")


if __name__ == "__main__":
    main()
