"""Random search over networks that predict the remaining capacity of battery cells."""
import argparse
import dataclasses
import json
import random

import numpy as np
import torch
import torch.nn as nn


@dataclasses.dataclass
class Config:
    width: int
    depth: int
    lr: float
    weight_decay: float
    dropout: float
    activation: str

    @classmethod
    def draw(cls, rng):
        return cls(
            width=rng.choice([512, 768, 1024, 1536]),
            depth=rng.randint(2, 6),
            lr=10 ** rng.uniform(-4.5, -2.5),
            weight_decay=10 ** rng.uniform(-6, -2),
            dropout=rng.uniform(0, 0.4),
            activation=rng.choice(["ReLU", "GELU", "SiLU"]))


class CapacityNet(nn.Module):
    def __init__(self, cfg, features):
        super().__init__()
        act = getattr(nn, cfg.activation)
        layers = [nn.Linear(features, cfg.width), act()]
        for _ in range(cfg.depth):
            layers += [nn.Linear(cfg.width, cfg.width), act(), nn.Dropout(cfg.dropout)]
        self.net = nn.Sequential(*layers, nn.Linear(cfg.width, 1))

    def forward(self, x):
        return self.net(x).squeeze(-1)


class CycleData:
    """Voltage and temperature features of discharge cycles, with the capacity some cycles later."""

    def __init__(self, cells=120, cycles=150, features=96, seed=0):
        rng = np.random.default_rng(seed)
        wear = np.cumsum(rng.gamma(1.0, 0.002, (cells, cycles)), axis=1)
        basis = rng.normal(size=(features,))
        x = wear[..., None] * basis + 0.05 * rng.normal(size=(cells, cycles, features))
        self.x = torch.from_numpy(x.astype(np.float32))
        self.y = torch.from_numpy((1 - wear).astype(np.float32))
        self.split = cells * 4 // 5
        self.features = features

    def batches(self, part, size, rng):
        rows = slice(0, self.split) if part == "train" else slice(self.split, None)
        x, y = self.x[rows].flatten(0, 1), self.y[rows].flatten()
        order = torch.from_numpy(rng.permutation(len(x)))
        for idx in order.split(size):
            yield x[idx], y[idx]


class Trainer:
    def __init__(self, cfg, data, device):
        self.cfg, self.data, self.device = cfg, data, device
        with torch.device(device):
            self.model = CapacityNet(cfg, data.features)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=cfg.lr, weight_decay=cfg.weight_decay)
        self.rng = np.random.default_rng(1)

    def train_epoch(self):
        self.model.train()
        for x, y in self.data.batches("train", 2048, self.rng):
            loss = (self.model(x.to(self.device)) - y.to(self.device)).abs().mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()

    @torch.no_grad()
    def validate(self):
        self.model.eval()
        errors = []
        for x, y in self.data.batches("val", 4096, self.rng):
            errors.append((self.model(x.to(self.device)).cpu() - y).abs())
        return float(torch.cat(errors).mean())


@dataclasses.dataclass
class Trial:
    number: int
    config: Config
    trainer: Trainer
    score: float


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--trials", type=int, default=100)
    ap.add_argument("--epochs", type=int, default=2)
    ap.add_argument("--seed", type=int, default=0)
    args = ap.parse_args()

    rng = random.Random(args.seed)
    torch.manual_seed(args.seed)
    data = CycleData()
    trials = []
    for number in range(args.trials):
        config = Config.draw(rng)
        trainer = Trainer(config, data, "cuda")
        for _ in range(args.epochs):
            trainer.train_epoch()
        score = trainer.validate()
        trials.append(Trial(number, config, trainer, score))
        if number % 10 == 0:
            print(f"trial {number}: mae {score:.4f} best {min(t.score for t in trials):.4f}")

    best = min(trials, key=lambda t: t.score)
    print(json.dumps({"trial": best.number, "mae": best.score, **dataclasses.asdict(best.config)}))
    torch.save(best.trainer.model.state_dict(), "/dev/null")


if __name__ == "__main__":
    main()
