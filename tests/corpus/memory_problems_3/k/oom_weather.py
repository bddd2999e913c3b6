#!/usr/bin/env python
"""Autoregressive emulator of a coarse reanalysis; lead time grows in stages during training."""
import sys
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

LAT, LON = 96, 192
FIELDS, STATIC = 34, 4
STAGES = [(1, 5), (2, 4), (4, 4), (8, 4)]     # (lead steps, updates)
BATCH = 6


class PeriodicConv(nn.Module):
    """3x3 conv: wraps in longitude, replicates at the poles."""

    def __init__(self, cin, cout):
        super().__init__()
        self.conv = nn.Conv2d(cin, cout, 3)

    def forward(self, x):
        x = F.pad(x, (1, 1, 0, 0), mode="circular")
        x = F.pad(x, (0, 0, 1, 1), mode="replicate")
        return self.conv(x)


class Mixer(nn.Module):
    def __init__(self, ch):
        super().__init__()
        self.norm = nn.GroupNorm(8, ch)
        self.local = PeriodicConv(ch, ch)
        self.up = nn.Conv2d(ch, 2 * ch, 1)
        self.down = nn.Conv2d(2 * ch, ch, 1)

    def forward(self, x):
        y = self.local(self.norm(x))
        return x + self.down(F.gelu(self.up(y)))


class Emulator(nn.Module):
    def __init__(self, ch=64, depth=4):
        super().__init__()
        self.encode = PeriodicConv(FIELDS + STATIC, ch)
        self.body = nn.Sequential(*[Mixer(ch) for _ in range(depth)])
        self.decode = nn.Conv2d(ch, FIELDS, 1)

    def forward(self, state, static):
        h = self.encode(torch.cat([state, static.expand(len(state), -1, -1, -1)], 1))
        return state + 0.1 * self.decode(self.body(h))


class Reanalysis:
    """Stands in for the zarr store: smooth random fields, sampled as (initial, verifying) pairs."""

    def __init__(self, seed):
        self.g = torch.Generator().manual_seed(seed)
        base = torch.randn(40, FIELDS, LAT // 8, LON // 8, generator=self.g)
        self.base = F.interpolate(base, size=(LAT, LON), mode="bilinear")

    def pairs(self, n, lead):
        t0 = torch.randint(0, len(self.base) - lead, (n,), generator=self.g)
        return self.base[t0], self.base[t0 + lead]


def area_weights(device):
    lat = torch.linspace(-89, 89, LAT, device=device).deg2rad()
    w = lat.cos()
    return (w / w.mean()).view(1, 1, LAT, 1)


def forecast(model, state, static, lead):
    """Push the model forward on its own output and train on the last step only."""
    for _ in range(lead - 1):
        state = model(state, static)
    return model(state.detach(), static)


def train_stage(model, opt, data, static, weight, lead, updates, device):
    for u in range(updates):
        first, last = (x.to(device) for x in data.pairs(BATCH, lead))
        pred = forecast(model, first, static, lead)
        loss = (weight * (pred - last).pow(2)).mean()
        opt.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
    return loss.item()


@torch.no_grad()
def skill(model, data, static, weight, device, lead=12):
    first, last = data.pairs(4, lead)
    state = first.to(device)
    for _ in range(lead):
        state = model(state, static)
    return (weight * (state - last.to(device)).pow(2)).mean().sqrt().item()


def main():
    device = torch.device(sys.argv[1] if len(sys.argv) > 1 else "cuda")
    torch.manual_seed(42)
    data = Reanalysis(seed=42)
    static = torch.randn(1, STATIC, LAT, LON).to(device)
    weight = area_weights(device)
    model = Emulator().to(device)
    opt = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=1e-4)
    t0 = time.time()
    for lead, updates in STAGES:
        loss = train_stage(model, opt, data, static, weight, lead, updates, device)
        rmse = skill(model, data, static, weight, device)
        print(f"lead {lead * 6:3d} h  loss {loss:.4f}  12-step rmse {rmse:.4f}  {time.time() - t0:.1f}s", flush=True)


if __name__ == "__main__":
    main()
