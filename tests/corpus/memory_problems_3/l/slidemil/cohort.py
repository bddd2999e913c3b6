import numpy as np
import torch


class Cohort:
    """Slides of one hospital, grouped by patient."""

    def __init__(self, n_slides, features, seed):
        rng = np.random.default_rng(seed)
        self.features = features
        self.tiles = rng.integers(200, 600, n_slides)
        self.grades = rng.integers(0, 5, n_slides)
        self.patients = rng.integers(0, n_slides // 2, n_slides)
        self.rng = rng

    def folds(self, k):
        patients = np.unique(self.patients)
        self.rng.shuffle(patients)
        for part in np.array_split(patients, k):
            held_out = np.isin(self.patients, part)
            yield np.flatnonzero(~held_out), np.flatnonzero(held_out)

    def slide(self, index):
        tiles = torch.from_numpy(self.rng.standard_normal((self.tiles[index], self.features), dtype=np.float32))
        return tiles, torch.tensor([int(self.grades[index])])
