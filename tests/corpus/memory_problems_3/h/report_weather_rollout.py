"""Autoregressive medium-range forecast with an encode-process-decode model.

The grid is mapped to a coarser hidden mesh, a stack of processor layers works
on the mesh, and the result is decoded as an increment of the state. One step
is six hours; the ensemble members share the weights.

    python report_weather_rollout.py cuda
"""
import sys

import torch
import torch.nn as nn
import torch.nn.functional as F

GRID, MESH, VARIABLES, HIDDEN = 4096, 1024, 78, 1024


class MLP(nn.Module):
    def __init__(self, cin, cout, hidden):
        super().__init__()
        self.norm = nn.LayerNorm(cin)
        self.fc1, self.fc2 = nn.Linear(cin, hidden), nn.Linear(hidden, cout)

    def forward(self, x):
        return self.fc2(F.gelu(self.fc1(self.norm(x))))


class Processor(nn.Module):
    def __init__(self, dim, heads=16):
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(dim)
        self.lin_query, self.lin_key = nn.Linear(dim, dim), nn.Linear(dim, dim)
        self.lin_value, self.projection = nn.Linear(dim, dim), nn.Linear(dim, dim)
        self.mlp = MLP(dim, dim, 4 * dim)

    def _split(self, x):
        return x.view(*x.shape[:2], self.heads, -1).transpose(1, 2)

    def forward(self, x):
        y = self.norm(x)
        q, k, v = (self._split(f(y)) for f in (self.lin_query, self.lin_key, self.lin_value))
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        x = x + self.projection(y)
        return x + self.mlp(x)


class Forecaster(nn.Module):
    def __init__(self, depth=8):
        super().__init__()
        self.ratio = GRID // MESH
        self.encoder = MLP(self.ratio * (2 * VARIABLES + 4), HIDDEN, HIDDEN)
        self.processor = nn.ModuleList(Processor(HIDDEN) for _ in range(depth))
        self.decoder = MLP(HIDDEN, self.ratio * VARIABLES, HIDDEN)

    def forward(self, previous, current, forcing):
        x = torch.cat([previous, current, forcing], dim=-1)
        x = self.encoder(x.reshape(len(x), MESH, -1))
        for layer in self.processor:
            x = layer(x)
        return self.decoder(x).reshape(len(x), GRID, VARIABLES)


class Runner:
    def __init__(self, checkpoint, device, precision=torch.float16):
        self.device, self.precision = device, precision
        self.model = Forecaster()
        if checkpoint is not None:
            self.model.load_state_dict(torch.load(checkpoint, map_location="cpu"))
        self.model.to(device).eval()
        generator = torch.Generator().manual_seed(1)
        self.mean = torch.randn(VARIABLES, generator=generator).to(device)
        self.stdev = (torch.rand(VARIABLES, generator=generator) + 0.5).to(device)

    def forcing(self, step):
        """Cosine/sine of local time and of the day of the year."""
        longitude = torch.linspace(0, 2 * torch.pi, GRID)
        hour = longitude + 2 * torch.pi * (6 * step % 24) / 24
        day = torch.full((GRID,), 2 * torch.pi * (6 * step / 24) / 365.25)
        return torch.stack([hour.cos(), hour.sin(), day.cos(), day.sin()], dim=-1).to(self.device)

    @torch.no_grad()
    def run(self, previous, current, lead_steps):
        previous = (previous.to(self.device) - self.mean) / self.stdev
        current = (current.to(self.device) - self.mean) / self.stdev
        with torch.autocast(self.device.type, dtype=self.precision):
            for step in range(lead_steps):
                forcing = self.forcing(step).expand(len(current), -1, -1)
                increment = self.model(previous, current, forcing)
                previous, current = current, current + increment.float()
                yield step, (current * self.stdev + self.mean).cpu()


def analysis(members, seed=4):
    generator = torch.Generator().manual_seed(seed)
    state = torch.randn(1, GRID, VARIABLES, generator=generator)
    noise = torch.randn(2, members, GRID, VARIABLES, generator=generator) * 0.05
    return state + noise[0], state + noise[1]


def main():
    device = torch.device(sys.argv[1] if len(sys.argv) > 1 else "cuda")
    torch.manual_seed(0)
    runner = Runner(None, device)
    previous, current = analysis(members=2)
    for step, state in runner.run(previous, current, lead_steps=32):
        if step % 8 == 0:
            spread = state.std(dim=0, unbiased=True).mean().item()
            print(f"+{6 * (step + 1):3d} h: mean spread {spread:.4f}")


if __name__ == "__main__":
    main()
