"""Finetune a regional forecast model on reanalysis windows (one window per step)."""
import math
import sys

import torch
from torch import nn


VARIABLES = 48
GRID = (24, 48)


class LatentMixer(nn.Module):
    def __init__(self, width, hidden):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.inflate = nn.Linear(width, hidden)
        self.gate = nn.Linear(width, hidden)
        self.deflate = nn.Linear(hidden, width)

    def forward(self, x):
        h = self.norm(x)
        return x + self.deflate(nn.functional.silu(self.gate(h)) * self.inflate(h))


class GridAttention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.qkv(self.norm(x)).view(b, n, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v)
        return x + self.out(mixed.transpose(1, 2).reshape(b, n, d))


class Forecaster(nn.Module):
    def __init__(self, width=1280, hidden=3584, layers=9, patch=4):
        super().__init__()
        self.patch = patch
        cells = (GRID[0] // patch) * (GRID[1] // patch)
        self.embed = nn.Conv2d(VARIABLES, width, patch, stride=patch)
        self.position = nn.Parameter(torch.zeros(1, cells, width))
        blocks = []
        for _ in range(layers):
            blocks += [GridAttention(width, 16), LatentMixer(width, hidden)]
        self.blocks = nn.Sequential(*blocks)
        self.readout = nn.ConvTranspose2d(width, VARIABLES, patch, stride=patch)

    def forward(self, state):
        x = self.embed(state)
        b, d, h, w = x.shape
        x = self.blocks(x.flatten(2).transpose(1, 2) + self.position)
        increment = self.readout(x.transpose(1, 2).reshape(b, d, h, w))
        return state + increment


def latitude_weights(device):
    latitudes = torch.linspace(-math.pi / 3, math.pi / 3, GRID[0])
    weights = latitudes.cos()
    return (weights / weights.mean()).view(1, 1, -1, 1).to(device)


def windows(count, lead, seed=5):
    rng = torch.Generator().manual_seed(seed)
    for _ in range(count):
        yield torch.randn(1, lead + 1, VARIABLES, *GRID, generator=rng)


def parameter_groups(model, decay):
    matrices = [p for p in model.parameters() if p.dim() > 1]
    vectors = [p for p in model.parameters() if p.dim() <= 1]
    return [{"params": matrices, "weight_decay": decay}, {"params": vectors, "weight_decay": 0.0}]


def rollout_loss(model, window, weights):
    state, loss = window[:, 0], 0.0
    for lead in range(1, window.size(1)):
        state = model(state)
        loss = loss + (weights * (state - window[:, lead]).square()).mean()
    return loss / (window.size(1) - 1)


def main(device):
    torch.manual_seed(0)
    with torch.device(device):
        model = Forecaster()
    weights = latitude_weights(device)
    optimizer = torch.optim.RMSprop(parameter_groups(model, 1e-4), lr=1e-5, alpha=0.95)
    size = sum(p.numel() for p in model.parameters())
    print(f"forecaster with {size / 1e6:.0f}M parameters, {len(optimizer.param_groups)} groups")
    running = torch.zeros((), device=device)
    for step, window in enumerate(windows(8, lead=2), start=1):
        optimizer.zero_grad(set_to_none=True)
        loss = rollout_loss(model, window.to(device), weights)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 32.0)
        optimizer.step()
        running += loss.detach()
        if step % 2 == 0:
            print(f"step {step}: mean rollout error {float(running) / step:.4f}")
    model.eval()
    with torch.no_grad():
        score = torch.stack([rollout_loss(model, w.to(device), weights) for w in windows(3, lead=3, seed=6)])
    print(f"held-out error {float(score.mean()):.4f}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "cuda")
