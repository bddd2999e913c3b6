"""Synthetic interaction log with a long-tailed catalogue."""
import numpy as np
import torch


class InteractionLog:
    def __init__(self, num_items, num_users, seed=7):
        rng = np.random.default_rng(seed)
        self.num_items = num_items
        ranks = rng.zipf(1.3, size=(num_users, 201)) % (num_items - 1)
        self.sequences = torch.from_numpy(ranks.astype(np.int64)) + 1

    def batches(self, length, batch_size, steps, device, generator):
        for _ in range(steps):
            rows = torch.randint(0, self.sequences.shape[0], (batch_size,), generator=generator)
            window = self.sequences[rows, -(length + 1):]
            negatives = torch.randint(1, self.num_items, (batch_size, length), generator=generator)
            yield (window[:, :-1].to(device), window[:, 1:].to(device), negatives.to(device))
