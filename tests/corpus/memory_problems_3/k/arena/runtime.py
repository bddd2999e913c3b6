import gc

import numpy as np
import torch


def configure(seed):
    """Reproducible runs with even step times."""
    torch.manual_seed(seed)
    np.random.seed(seed)
    gc.collect()
    gc.disable()
    return np.random.default_rng(seed)


class StepClock:
    """Periodic housekeeping between long stretches of training."""

    def __init__(self, every=500):
        self.every = every
        self.steps = 0

    def tick(self):
        self.steps += 1
        if self.steps % self.every == 0:
            gc.collect()
