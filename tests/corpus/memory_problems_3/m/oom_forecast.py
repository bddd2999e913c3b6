"""Day-ahead load forecast with quantile heads for a regional grid operator."""
import sys

import numpy as np
import pandas as pd
import torch
import torch.nn as nn

QUANTILES = (0.1, 0.5, 0.9)


def build_frame(hours, stations, seed):
    rng = np.random.default_rng(seed)
    index = pd.date_range("2021-01-01", periods=hours, freq="h")
    parts = []
    for station in range(stations):
        daily = np.sin(2 * np.pi * index.hour.values / 24 + rng.uniform(0, 1))
        yearly = np.cos(2 * np.pi * index.dayofyear.values / 365)
        load = 50 + 12 * daily + 9 * yearly + rng.normal(0, 2, hours)
        part = pd.DataFrame({"load": load}, index=index)
        part["station"] = station
        part["temp"] = 11 - 9 * yearly + rng.normal(0, 3, hours)
        part["wind"] = rng.gamma(2.0, 2.5, hours)
        for lag in (24, 48, 168):
            part[f"lag{lag}"] = part["load"].shift(lag)
        part["hour_sin"], part["hour_cos"] = np.sin(index.hour * np.pi / 12), np.cos(index.hour * np.pi / 12)
        part["weekend"] = (index.dayofweek >= 5).astype(float)
        parts.append(part.dropna())
    return pd.concat(parts)


def split(frame, cut):
    train, valid = frame[frame.index < cut], frame[frame.index >= cut]
    mean, std = train.mean(), train.std().replace(0, 1)
    return (train - mean) / std, (valid - mean) / std


def to_tensors(frame, device):
    y = torch.tensor(frame["load"].values, dtype=torch.float32, device=device)
    x = torch.tensor(frame.drop(columns="load").values, dtype=torch.float32, device=device)
    return x, y


class QuantileNet(nn.Module):
    def __init__(self, features, width=256):
        super().__init__()
        self.trunk = nn.Sequential(
            nn.Linear(features, width), nn.SiLU(), nn.LayerNorm(width),
            nn.Linear(width, width), nn.SiLU(), nn.LayerNorm(width),
        )
        self.heads = nn.ModuleList(nn.Linear(width, 1) for _ in QUANTILES)

    def forward(self, x):
        z = self.trunk(x)
        return [head(z) for head in self.heads]


def pinball(pred, target, q):
    gap = target - pred
    return torch.maximum(q * gap, (q - 1) * gap).mean()


def total_loss(preds, target):
    return sum(pinball(p, target, q) for p, q in zip(preds, QUANTILES)) / len(QUANTILES)


def run_epoch(model, optim, x, y, batch, generator):
    order = torch.randperm(len(x), generator=generator)
    shown = 0.0
    for k, start in enumerate(range(0, len(order), batch)):
        rows = order[start:start + batch].to(x.device)
        loss = total_loss(model(x[rows]), y[rows])
        optim.zero_grad()
        loss.backward()
        optim.step()
        if k % 50 == 0:
            shown = loss.item()
            print(f"  batch {k:4d} pinball {shown:.4f}")
    return shown


@torch.no_grad()
def validate(model, x, y):
    model.eval()
    preds = model(x)
    score = total_loss(preds, y).item()
    model.train()
    return score


def main(device):
    torch.manual_seed(3)
    generator = torch.Generator().manual_seed(3)
    frame = build_frame(hours=24 * 500, stations=12, seed=3)
    train, valid = split(frame, pd.Timestamp("2022-01-20"))
    print(f"train rows {len(train)}, validation rows {len(valid)}")
    x, y = to_tensors(train, device)
    xv, yv = to_tensors(valid, device)
    model = QuantileNet(x.shape[1]).to(device)
    optim = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for epoch in range(3):
        last = run_epoch(model, optim, x, y, batch=512, generator=generator)
        score = validate(model, xv, yv)
        print(f"epoch {epoch} train {last:.4f} validation {score:.4f}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "cuda")
