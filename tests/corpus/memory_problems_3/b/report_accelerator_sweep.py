"""Trains several click-through models of a hyperparameter sweep, one after the other."""
import dataclasses
import itertools

import torch
from torch import nn
from torch.nn import functional as F

from sweep_accel import Accelerator


@dataclasses.dataclass(frozen=True)
class Trial:
    dim: int
    hidden: int
    lr: float

    def __str__(self):
        return f"dim={self.dim} hidden={self.hidden} lr={self.lr:g}"


class ClickModel(nn.Module):
    def __init__(self, items, users, dim, hidden):
        super().__init__()
        self.item = nn.Embedding(items, dim)
        self.user = nn.Embedding(users, dim)
        self.tower = nn.Sequential(
            nn.Linear(2 * dim, hidden), nn.ReLU(), nn.Linear(hidden, hidden // 2), nn.ReLU(),
            nn.Linear(hidden // 2, 1))

    def forward(self, user, item):
        return self.tower(torch.cat([self.user(user), self.item(item)], dim=-1)).squeeze(-1)


def click_log(batches, size, users, items, seed):
    generator = torch.Generator().manual_seed(seed)
    return [{"user": torch.randint(users, (size,), generator=generator),
             "item": torch.randint(items, (size,), generator=generator),
             "click": torch.bernoulli(torch.full((size,), 0.04), generator=generator)} for _ in range(batches)]


def evaluate(model, loader):
    model.eval()
    total = 0.0
    with torch.no_grad():
        for batch in loader:
            logits = model(batch["user"], batch["item"])
            total += F.binary_cross_entropy_with_logits(logits, batch["click"]).item()
    model.train()
    return total / len(loader)


def run_trial(accelerator, trial, train, valid, users, items, epochs=2):
    model = ClickModel(items, users, trial.dim, trial.hidden)
    model = model.to(accelerator.device)
    optimizer = torch.optim.Adam(model.parameters(), lr=trial.lr)
    model, optimizer, train_loader, valid_loader = accelerator.prepare(model, optimizer, train, valid)
    history = []
    for _ in range(epochs):
        for batch in train_loader:
            loss = F.binary_cross_entropy_with_logits(model(batch["user"], batch["item"]), batch["click"])
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        history.append(evaluate(model, valid_loader))
    return min(history)


def main():
    torch.manual_seed(1)
    users, items = 120_000, 60_000
    accelerator = Accelerator(gradient_accumulation_steps=2)
    train = click_log(24, 4096, users, items, seed=0)
    valid = click_log(6, 4096, users, items, seed=1)
    scores = {}
    for dim, hidden, lr in itertools.product([48, 64], [512, 1024], [1e-3, 3e-4]):
        trial = Trial(dim, hidden, lr)
        scores[trial] = run_trial(accelerator, trial, train, valid, users, items)
        print(f"{trial}: {scores[trial]:.4f}  ({torch.cuda.memory_allocated() / 2**20:.0f} MiB)")
    best = min(scores, key=scores.get)
    print(f"best: {best}")


if __name__ == "__main__":
    main()
