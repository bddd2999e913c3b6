"""Policy portfolio: one row per policy and year."""
import numpy as np
import pandas as pd
import torch

NUMERIC = ["driver_age", "vehicle_age", "bonus_malus", "density", "power"]
CATEGORICAL = {"region": 22, "brand": 11, "fuel": 3, "area": 6}


def load_portfolio(n_policies, seed):
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame({
        "driver_age": rng.integers(18, 90, n_policies),
        "vehicle_age": rng.integers(0, 25, n_policies),
        "bonus_malus": rng.integers(50, 200, n_policies),
        "density": rng.lognormal(6, 1.5, n_policies),
        "power": rng.integers(4, 15, n_policies),
        "exposure": rng.uniform(0.05, 1.0, n_policies),
    })
    for name, cardinality in CATEGORICAL.items():
        frame[name] = rng.integers(0, cardinality, n_policies)
    frame["claims"] = rng.poisson(0.1 * frame["exposure"])
    numeric = frame[NUMERIC].astype("float32")
    frame[NUMERIC] = (numeric - numeric.mean()) / numeric.std()
    return frame


class PolicyTable:
    def __init__(self, frame):
        self.numeric = torch.from_numpy(frame[NUMERIC].to_numpy(np.float32))
        self.codes = torch.from_numpy(frame[list(CATEGORICAL)].to_numpy(np.int64))
        self.claims = torch.from_numpy(frame["claims"].to_numpy(np.float32))
        self.exposure = torch.from_numpy(frame[["exposure"]].to_numpy(np.float32))

    def __len__(self):
        return len(self.claims)

    def select(self, index, device):
        columns = (self.numeric, self.codes, self.claims, self.exposure)
        return tuple(column[index].to(device) for column in columns)

    def batches(self, size, device, generator):
        order = torch.randperm(len(self), generator=generator)
        for start in range(0, len(self) - size + 1, size):
            yield self.select(order[start:start + size], device)
