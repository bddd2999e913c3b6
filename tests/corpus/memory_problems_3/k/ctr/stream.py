import numpy as np
import torch


class ClickStream:
    """Replays one day of impressions in time order."""

    def __init__(self, rows, fields, dense, buckets, seed):
        self.rows, self.fields, self.dense, self.buckets = rows, fields, dense, buckets
        self.rng = np.random.default_rng(seed)

    def batches(self, size):
        for _ in range(self.rows // size):
            hot = self.rng.random((size, self.fields), dtype=np.float32) ** 5 * self.buckets
            cats = torch.from_numpy(hot.astype(np.int64) % self.buckets)
            dense = torch.from_numpy(self.rng.standard_normal((size, self.dense), dtype=np.float32))
            label = torch.from_numpy((self.rng.random(size) < 0.03).astype(np.float32))
            yield dense, cats, label
