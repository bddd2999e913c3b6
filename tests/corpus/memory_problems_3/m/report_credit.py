"""Default prediction on loan applications with a feature token transformer."""
import math
import sys

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from torch import nn

NUMERIC = ["income", "amount", "rate", "term", "dti", "age", "utilisation", "inquiries"]
CATEGORICAL = {"purpose": 14, "grade": 7, "state": 51, "employment": 12}


def make_applications(rows, seed):
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame({name: rng.normal(size=rows) for name in NUMERIC})
    for name, levels in CATEGORICAL.items():
        frame[name] = rng.integers(0, levels, rows)
    frame["default"] = (rng.random(rows) < 0.12).astype("float32")
    return frame


class FeatureTokens(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.scale = nn.Parameter(torch.randn(len(NUMERIC), width) * 0.02)
        self.shift = nn.Parameter(torch.zeros(len(NUMERIC), width))
        self.tables = nn.ModuleList([nn.Embedding(n, width) for n in CATEGORICAL.values()])
        self.cls = nn.Parameter(torch.zeros(1, 1, width))

    def forward(self, num, cat):
        tokens = [self.cls.expand(len(num), -1, -1), num.unsqueeze(-1) * self.scale + self.shift]
        tokens += [table(cat[:, i : i + 1]) for i, table in enumerate(self.tables)]
        return torch.cat(tokens, dim=1)


class Layer(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.n1, self.n2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))
        self.up, self.gate = nn.Linear(width, 3 * width), nn.Linear(width, 3 * width)
        self.down = nn.Linear(3 * width, width)

    def forward(self, x):
        b, t, d = x.shape
        h = self.n1(x)
        q, k, v = (f(h).view(b, t, self.heads, -1).transpose(1, 2) for f in (self.q, self.k, self.v))
        att = (q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])).softmax(-1)
        x = x + self.o((att @ v).transpose(1, 2).reshape(b, t, d))
        h = self.n2(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class LoanModel(nn.Module):
    def __init__(self, width=768, heads=8, depth=12):
        super().__init__()
        self.tokens = FeatureTokens(width)
        self.layers = nn.ModuleList([Layer(width, heads) for _ in range(depth)])
        self.norm = nn.LayerNorm(width)
        self.out = nn.Linear(width, 1)

    def forward(self, num, cat):
        x = self.tokens(num, cat)
        for layer in self.layers:
            x = layer(x)
        return self.out(self.norm(x[:, 0])).squeeze(-1)


def batches(frame, size, device):
    num = torch.tensor(frame[NUMERIC].to_numpy(), dtype=torch.float32)
    cat = torch.tensor(frame[list(CATEGORICAL)].to_numpy(), dtype=torch.long)
    y = torch.tensor(frame["default"].to_numpy(), dtype=torch.float32)
    for idx in torch.randperm(len(frame)).split(size):
        yield num[idx].to(device), cat[idx].to(device), y[idx].to(device)


def parameter_groups(model, decay):
    matrices = [p for p in model.parameters() if p.ndim >= 2]
    vectors = [p for p in model.parameters() if p.ndim < 2]
    return [{"params": matrices, "weight_decay": decay}, {"params": vectors, "weight_decay": 0.0}]


def main():
    device = torch.device(sys.argv[1] if len(sys.argv) > 1 else "cuda")
    torch.manual_seed(0)
    frame = make_applications(8 * 12, seed=0)
    model = LoanModel().to(device)
    optimizer = torch.optim.AdamW(parameter_groups(model, 0.01), lr=1e-4)
    size = sum(p.numel() for p in model.parameters()) * 4 / 2**20
    print(f"weights {size:.0f} MiB")
    for epoch in range(2):
        total = 0.0
        for num, cat, y in batches(frame, 8, device):
            loss = F.binary_cross_entropy_with_logits(model(num, cat), y)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=False)
            optimizer.step()
            total += loss.item()
        peak = torch.cuda.max_memory_allocated(device) / 2**20
        print(f"epoch {epoch}: loss {total / 12:.4f}, peak {peak:.0f} MiB", flush=True)


if __name__ == "__main__":
    main()
