# Next-basket recommendation. A large effective batch is made of several slices because of the in-batch negatives.
import logging
import os
import random

import torch
from torch import nn
from torch.nn import functional as F

log = logging.getLogger(os.path.basename(__file__))

CONFIG = dict(
    items=60_000,
    users=40_000,
    dim=256,
    history=50,
    slice_size=1024,
    slices=32,
    iterations=80,
    lr=2e-3,
    temperature=0.07,
)


class Baskets:
    """Purchase histories with a popularity skew."""

    def __init__(self, items, users, history, seed=13):
        self.items, self.users, self.history = items, users, history
        self.gen = torch.Generator().manual_seed(seed)

    def draw(self, n):
        skew = torch.rand(n, self.history + 1, generator=self.gen).pow(3)
        items = (skew * (self.items - 1)).long()
        users = torch.randint(0, self.users, (n,), generator=self.gen)
        return users, items[:, :-1], items[:, -1]


class TwoTower(nn.Module):
    def __init__(self, items, users, dim):
        super().__init__()
        self.item = nn.Embedding(items, dim)
        self.user = nn.Embedding(users, dim)
        self.attend = nn.Linear(dim, 1)
        self.query = nn.Sequential(nn.Linear(2 * dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))
        self.document = nn.Sequential(nn.Linear(dim, dim), nn.GELU(), nn.Linear(dim, dim))

    def encode_query(self, users, history):
        h = self.item(history)
        weights = self.attend(torch.tanh(h)).softmax(dim=1)
        pooled = (weights * h).sum(dim=1)
        return F.normalize(self.query(torch.cat([self.user(users), pooled], dim=1)), dim=1)

    def encode_item(self, items):
        return F.normalize(self.document(self.item(items)), dim=1)


def in_batch_loss(q, d, temperature):
    logits = q @ d.T / temperature
    target = torch.arange(q.size(0), device=q.device)
    return F.cross_entropy(logits, target)


def run_iteration(model, optimizer, data, cfg, device):
    optimizer.zero_grad()
    total = 0
    for _ in range(cfg["slices"]):
        users, history, target = (t.to(device) for t in data.draw(cfg["slice_size"]))
        q = model.encode_query(users, history)
        d = model.encode_item(target)
        total = total + in_batch_loss(q, d, cfg["temperature"]) / cfg["slices"]
    total.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return total.item()


def main():
    logging.basicConfig(level=logging.INFO, format="%(name)s: %(message)s")
    random.seed(0)
    cfg, device = CONFIG, torch.device("cuda")
    data = Baskets(cfg["items"], cfg["users"], cfg["history"])
    model = TwoTower(cfg["items"], cfg["users"], cfg["dim"]).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=cfg["lr"])
    log.info("effective batch %d", cfg["slice_size"] * cfg["slices"])
    for iteration in range(cfg["iterations"]):
        loss = run_iteration(model, optimizer, data, cfg, device)
        if iteration % 20 == 0:
            log.info("iteration %d loss %.4f", iteration, loss)


if __name__ == "__main__":
    main()
