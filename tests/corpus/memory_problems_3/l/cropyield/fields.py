import numpy as np
import torch


class FieldTrials:
    """Synthetic trial records: cultivar, plot, soil unit and management codes plus weather summaries."""

    n_numeric = 24
    cardinalities = {"plot": 180_000, "cultivar": 6_000, "soil_unit": 40_000, "management": 900}

    def __init__(self, seed, seasons):
        self.rng = np.random.default_rng(seed)
        n = 60_000
        self.season = self.rng.choice(seasons, n)
        self.codes = np.stack([self.rng.integers(0, size, n) for size in self.cardinalities.values()], axis=1)
        self.numeric = self.rng.standard_normal((n, self.n_numeric)).astype(np.float32)
        self.target = (4.5 + self.numeric[:, :4].sum(axis=1) * 0.3).astype(np.float32)

    def batches(self, size, count, exclude=None, only=None):
        keep = self.season != exclude if only is None else self.season == only
        rows = np.flatnonzero(keep)
        for _ in range(count):
            pick = self.rng.choice(rows, size)
            yield (torch.from_numpy(self.codes[pick]), torch.from_numpy(self.numeric[pick]),
                   torch.from_numpy(self.target[pick]))
