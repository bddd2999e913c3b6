import numpy as np
import torch


class Hospital:
    def __init__(self, name, admissions, seed):
        self.name, self.admissions = name, admissions
        self.rng = np.random.default_rng(seed)

    def draw(self, n):
        labs = torch.from_numpy(self.rng.standard_normal((n, 380), dtype=np.float32))
        codes = torch.from_numpy((self.rng.random((n, 900)) < 0.01).astype(np.float32))
        ward = torch.zeros(n, 24)
        ward[torch.arange(n), torch.from_numpy(self.rng.integers(0, 24, n))] = 1.0
        readmitted = torch.from_numpy((self.rng.random(n) < 0.14).astype(np.float32))
        return labs, codes, ward, readmitted
