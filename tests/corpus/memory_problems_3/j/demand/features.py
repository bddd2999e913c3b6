"""Daily sales of a grocery chain, as exported by the till system."""
import numpy as np
import pandas as pd
import torch

CATEGORICAL = ["store", "item", "family", "weekday"]
NUMERIC = ["price", "promo", "lag_7", "lag_28"]


def load_sales(n_rows, seed):
    rng = np.random.default_rng(seed)
    article_numbers = np.sort(rng.choice(np.arange(103_000, 188_000), 4_200, replace=False))
    item = rng.choice(article_numbers, n_rows)
    item[rng.random(n_rows) < 0.004] = 9_999_999
    return pd.DataFrame({
        "store": rng.integers(1, 55, n_rows),
        "item": item,
        "family": rng.integers(0, 33, n_rows),
        "weekday": rng.integers(0, 7, n_rows),
        "price": rng.gamma(2.0, 2.0, n_rows).astype("float32"),
        "promo": rng.integers(0, 2, n_rows).astype("float32"),
        "lag_7": rng.poisson(6, n_rows).astype("float32"),
        "lag_28": rng.poisson(6, n_rows).astype("float32"),
        "units": rng.poisson(6, n_rows).astype("float32"),
    })


class SalesEncoder:
    """Learns what it needs from the training frame and turns frames into tensors."""

    def fit(self, frame):
        self.mean = frame[NUMERIC].mean()
        self.std = frame[NUMERIC].std() + 1e-6
        self.vocab_sizes = {name: int(frame[name].max()) + 1 for name in CATEGORICAL}
        return self

    def transform(self, frame):
        numeric = ((frame[NUMERIC] - self.mean) / self.std).to_numpy(np.float32)
        codes = frame[CATEGORICAL].to_numpy(np.int64)
        units = np.log1p(frame["units"].to_numpy(np.float32))
        return torch.from_numpy(codes), torch.from_numpy(numeric), torch.from_numpy(units)
