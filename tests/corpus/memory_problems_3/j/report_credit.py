"""Score a loan portfolio with the cross-validation ensemble and write a ranked table."""
import sys
import time

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from torch import nn

FOLDS = 10
NUMERIC = 60
CATEGORIES = (12, 55, 300, 2400)


class ColumnEncoder(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.numeric = nn.Linear(NUMERIC, width)
        self.tables = nn.ModuleList(nn.Embedding(n, width) for n in CATEGORIES)

    def forward(self, numbers, codes):
        x = self.numeric(numbers)
        for i, table in enumerate(self.tables):
            x = x + table(codes[:, i])
        return x


class ResidualTower(nn.Module):
    def __init__(self, width, hidden):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, hidden)
        self.down = nn.Linear(hidden, width)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))


class DefaultModel(nn.Module):
    def __init__(self, width=1536, hidden=4096, depth=5):
        super().__init__()
        self.columns = ColumnEncoder(width)
        self.towers = nn.Sequential(*[ResidualTower(width, hidden) for _ in range(depth)])
        self.norm = nn.LayerNorm(width)
        self.hazard = nn.Linear(width, 12)

    def forward(self, numbers, codes):
        x = self.norm(self.towers(self.columns(numbers, codes)))
        monthly = torch.sigmoid(self.hazard(x).float())
        return 1.0 - torch.prod(1.0 - monthly, dim=1)


class FoldStore:
    """Gives back the network trained on one split of the development sample."""

    def __init__(self, device, seed):
        self.device, self.seed = device, seed

    def restore(self, fold):
        torch.manual_seed(self.seed + fold)
        with torch.device(self.device):
            model = DefaultModel()
        return model.eval()


def portfolio(rows, seed=8):
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame({"loan": np.arange(rows), "balance": rng.lognormal(9, 1, rows)})
    numbers = rng.standard_normal((rows, NUMERIC), dtype=np.float32)
    codes = np.stack([rng.integers(0, n, rows) for n in CATEGORIES], 1)
    return frame, numbers, codes


def batches(numbers, codes, size, device):
    for start in range(0, len(numbers), size):
        part = slice(start, start + size)
        yield torch.from_numpy(numbers[part]).to(device), torch.from_numpy(codes[part]).to(device)


def score_fold(model, numbers, codes, device, size=2048):
    parts = [model(n, c).cpu() for n, c in batches(numbers, codes, size, device)]
    return torch.cat(parts).numpy()


def score(store, numbers, codes, device):
    columns = {}
    with torch.no_grad(), torch.autocast("cuda", dtype=torch.float16):
        for fold in range(FOLDS):
            start = time.time()
            model = store.restore(fold)
            columns[f"fold_{fold}"] = score_fold(model, numbers, codes, device)
            del model
            print(f"fold {fold}: {len(numbers)} loans in {time.time() - start:.2f}s")
    return pd.DataFrame(columns)


def rank(frame, folds, given_default=0.45):
    frame = frame.copy()
    frame["probability"] = np.nan_to_num(folds.mean(axis=1))
    frame["spread"] = np.nan_to_num(folds.std(axis=1))
    frame["expected_loss"] = frame["probability"] * frame["balance"] * given_default
    return frame.sort_values("expected_loss", ascending=False).reset_index(drop=True)


def main(device):
    frame, numbers, codes = portfolio(8000)
    folds = score(FoldStore(device, seed=100), numbers, codes, device)
    table = rank(frame, folds)
    print(table.head(5).to_string(index=False))
    print(f"portfolio expected loss {table['expected_loss'].sum():.0f}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "cuda")
