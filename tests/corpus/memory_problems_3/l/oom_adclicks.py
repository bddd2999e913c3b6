"""Click-through-rate model with one embedding table per categorical field (Criteo-like log)."""
import sys
import time
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.nn as nn


@dataclass
class Config:
    dim: int = 64
    dense_features: int = 13
    batch_size: int = 4096
    steps_per_day: int = 8
    days: int = 2
    lr: float = 1e-3
    weight_decay: float = 1e-6
    cardinalities: list = field(default_factory=lambda: [
        1460, 583, 410_000, 380_000, 305, 24, 12517, 633, 3, 93145, 5683, 430_000, 3194, 27,
        14992, 390_000, 10, 5652, 2173, 4, 440_000, 18, 15, 286_181, 105, 342_572,
        420_000, 365_000, 401_000, 398_000, 372_000, 355_000, 367_000, 391_000,
    ])


class FieldEmbeddings(nn.Module):
    def __init__(self, cardinalities, dim):
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(n, dim) for n in cardinalities)
        for table in self.tables:
            nn.init.zeros_(table.weight)

    def forward(self, codes):
        return torch.stack([table(codes[:, i]) for i, table in enumerate(self.tables)], dim=1)


class DeepFM(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        fields = len(cfg.cardinalities)
        self.fields = FieldEmbeddings(cfg.cardinalities, cfg.dim)
        self.dense = nn.Linear(cfg.dense_features, cfg.dim)
        width = (fields + 1) * cfg.dim
        self.deep = nn.Sequential(
            nn.Linear(width, 400), nn.ReLU(), nn.Dropout(0.1), nn.Linear(400, 400), nn.ReLU(), nn.Linear(400, 1)
        )
        self.bias = nn.Parameter(torch.zeros(1))

    def forward(self, dense, codes):
        v = torch.cat([self.fields(codes), self.dense(dense).unsqueeze(1)], dim=1)
        pair = 0.5 * (v.sum(1).pow(2) - v.pow(2).sum(1)).sum(1)
        return self.bias + pair + self.deep(v.flatten(1)).squeeze(1)


class ClickLog:
    def __init__(self, cfg, seed):
        self.cfg = cfg
        self.rng = np.random.default_rng(seed)

    def batch(self):
        n = self.cfg.batch_size
        dense = self.rng.lognormal(size=(n, self.cfg.dense_features)).astype(np.float32)
        codes = np.stack([self.rng.integers(0, c, n) for c in self.cfg.cardinalities], axis=1)
        clicked = (self.rng.random(n) < 0.03).astype(np.float32)
        return torch.from_numpy(np.log1p(dense)), torch.from_numpy(codes), torch.from_numpy(clicked)


class Trainer:
    def __init__(self, cfg, device):
        self.cfg, self.device = cfg, device
        self.model = DeepFM(cfg).to(device)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=cfg.lr, weight_decay=0.0)
        self.criterion = nn.BCEWithLogitsLoss()
        self.log = ClickLog(cfg, seed=2024)

    def step(self):
        dense, codes, clicked = (t.to(self.device) for t in self.log.batch())
        loss = self.criterion(self.model(dense, codes), clicked)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 10.0)
        self.optimizer.step()
        return loss.item()

    def fit(self):
        for day in range(self.cfg.days):
            start, losses = time.time(), []
            for _ in range(self.cfg.steps_per_day):
                losses.append(self.step())
            print(f"day {day}: logloss {np.mean(losses):.4f} ({time.time() - start:.1f}s)", flush=True)


def main():
    device = torch.device(sys.argv[1] if len(sys.argv) > 1 else "cuda")
    torch.manual_seed(2024)
    cfg = Config()
    trainer = Trainer(cfg, device)
    rows = sum(cfg.cardinalities)
    print(f"{len(cfg.cardinalities)} fields, {rows / 1e6:.2f} M rows of {cfg.dim}", flush=True)
    trainer.fit()


if __name__ == "__main__":
    main()
