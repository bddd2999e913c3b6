"""Claim frequency model on hashed policy attributes: a deep residual MLP with a Poisson loss."""
import sys
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from torch import nn
from torch.nn import functional as F


@dataclass
class Settings:
    buckets: int = 4096
    width: int = 4096
    blocks: int = 5
    batch: int = 256
    steps: int = 8
    lr: float = 0.01
    seed: int = 17


def policies(settings):
    rng = np.random.default_rng(settings.seed)
    rows = settings.batch * settings.steps
    return pd.DataFrame(
        {
            "region": rng.integers(0, 400, rows),
            "vehicle": rng.integers(0, 2500, rows),
            "occupation": rng.integers(0, 300, rows),
            "bonus": rng.integers(0, 30, rows),
            "exposure": rng.uniform(0.1, 1.0, rows).astype("float32"),
            "claims": rng.poisson(0.12, rows).astype("float32"),
        }
    )


class HashedFrame:
    def __init__(self, frame, settings):
        self.settings = settings
        codes = [pd.util.hash_array((name + ":" + frame[name].astype(str)).to_numpy(dtype=object)) % settings.buckets
                 for name in ("region", "vehicle", "occupation", "bonus")]
        self.codes = torch.from_numpy(np.stack(codes, 1).astype("int64"))
        self.exposure = torch.from_numpy(frame["exposure"].to_numpy(copy=True))
        self.claims = torch.from_numpy(frame["claims"].to_numpy(copy=True))

    def batches(self, device):
        size = self.settings.batch
        for start in range(0, len(self.codes), size):
            part = slice(start, start + size)
            wide = torch.zeros(size, self.settings.buckets).scatter_(1, self.codes[part], 1.0)
            yield wide.to(device), self.exposure[part].to(device), self.claims[part].to(device)


class ResidualBlock(nn.Module):
    def __init__(self, width, device):
        super().__init__()
        self.norm = nn.LayerNorm(width, device=device)
        self.inner = nn.Linear(width, width, device=device)
        self.outer = nn.Linear(width, width, device=device)

    def forward(self, x):
        return x + self.outer(torch.relu(self.inner(self.norm(x))))


class FrequencyModel(nn.Module):
    def __init__(self, settings, device):
        super().__init__()
        self.inlet = nn.Linear(settings.buckets, settings.width, device=device)
        self.blocks = nn.Sequential(*[ResidualBlock(settings.width, device) for _ in range(settings.blocks)])
        self.rate = nn.Linear(settings.width, 1, device=device)

    def forward(self, wide):
        return self.rate(self.blocks(torch.relu(self.inlet(wide)))).squeeze(-1)


def fit(model, data, settings, device):
    optimizer = torch.optim.Adagrad(model.parameters(), lr=settings.lr, initial_accumulator_value=0.1)
    for step, (wide, exposure, claims) in enumerate(data.batches(device), start=1):
        log_rate = model(wide)
        loss = F.poisson_nll_loss(log_rate + exposure.log(), claims)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 2 == 0:
            now, top = torch.cuda.memory_allocated(device), torch.cuda.max_memory_allocated(device)
            print(f"step {step}: loss {loss.item():.4f}, {now / 2**20:.0f} MiB now, {top / 2**20:.0f} MiB at most", flush=True)


def main():
    device = torch.device(sys.argv[1] if len(sys.argv) > 1 else "cuda")
    settings = Settings()
    torch.manual_seed(settings.seed)
    data = HashedFrame(policies(settings), settings)
    model = FrequencyModel(settings, device)
    count = sum(p.numel() for p in model.parameters())
    print(f"{count / 1e6:.1f} M parameters, {count * 4 / 2**20:.0f} MiB of weights")
    fit(model, data, settings, device)


if __name__ == "__main__":
    main()
