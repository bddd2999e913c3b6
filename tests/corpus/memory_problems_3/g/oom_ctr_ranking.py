"""Click-through-rate model: categorical embeddings, a cross network and a small MLP."""
import argparse
import logging

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

CARDINALITIES = {
    "user_id": 12_000_000,
    "item_id": 8_500_000,
    "query_hash": 6_000_000,
    "device_model": 60_000,
    "publisher": 250_000,
    "campaign": 900_000,
    "hour": 168,
}
NUM_DENSE = 13


class CrossNet(nn.Module):
    def __init__(self, dim, layers):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(dim, dim) for _ in range(layers))

    def forward(self, x0):
        x = x0
        for layer in self.layers:
            x = x0 * layer(x) + x
        return x


class CTRModel(nn.Module):
    def __init__(self, cardinalities, dim, device):
        super().__init__()
        self.tables = nn.ModuleDict({
            name: nn.Embedding(size, dim, device=device) for name, size in cardinalities.items()})
        width = dim * len(cardinalities) + NUM_DENSE
        self.cross = CrossNet(width, 3).to(device)
        self.mlp = nn.Sequential(nn.Linear(width, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(),
                                 nn.Linear(256, 1)).to(device)

    def forward(self, dense, sparse):
        columns = [table(sparse[name]) for name, table in self.tables.items()]
        x = torch.cat([dense, *columns], dim=1)
        return self.mlp(self.cross(x)).squeeze(1)


class ClickLog:
    """Zipf-like accesses, as in the hashed features of an ad log."""

    def __init__(self, batch_size, steps, seed=0):
        self.batch_size, self.steps = batch_size, steps
        self.rng = np.random.default_rng(seed)

    def __iter__(self):
        for _ in range(self.steps):
            dense = torch.from_numpy(self.rng.lognormal(size=(self.batch_size, NUM_DENSE)).astype(np.float32)).log1p()
            sparse = {}
            for name, size in CARDINALITIES.items():
                raw = self.rng.zipf(1.1, self.batch_size) % size
                sparse[name] = torch.from_numpy(raw.astype(np.int64))
            label = torch.from_numpy((self.rng.random(self.batch_size) < 0.03).astype(np.float32))
            yield dense, sparse, label


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--batch-size", type=int, default=4096)
    ap.add_argument("--dim", type=int, default=48)
    ap.add_argument("--steps", type=int, default=200)
    ap.add_argument("--lr", type=float, default=1e-3)
    args = ap.parse_args()
    logging.basicConfig(level=logging.INFO)
    device = torch.device("cuda")

    model = CTRModel(CARDINALITIES, args.dim, device)
    rows = sum(CARDINALITIES.values())
    logging.info("%.1f M rows of %d values", rows / 1e6, args.dim)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    running = 0.0
    for step, (dense, sparse, label) in enumerate(ClickLog(args.batch_size, args.steps)):
        dense, label = dense.to(device), label.to(device)
        sparse = {k: v.to(device) for k, v in sparse.items()}
        loss = F.binary_cross_entropy_with_logits(model(dense, sparse), label)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        running += loss.item()
        if (step + 1) % 50 == 0:
            logging.info("step %d logloss %.5f", step + 1, running / 50)
            running = 0.0


if __name__ == "__main__":
    main()
