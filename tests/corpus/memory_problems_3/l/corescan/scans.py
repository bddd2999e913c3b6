import numpy as np
import torch


class CoreScans:
    """Random crops out of a synthetic core: smooth grains, one mineral phase per grain."""

    def __init__(self, n_crops, side, phases, batch, seed=12):
        self.n_crops, self.side, self.phases, self.batch = n_crops, side, phases, batch
        self.seed = seed

    def __len__(self):
        return self.n_crops

    def _grains(self, rng):
        coarse = rng.integers(0, self.phases, (self.batch, self.side // 8, self.side // 8, self.side // 8))
        for axis in (1, 2, 3):
            coarse = coarse.repeat(8, axis=axis)
        return coarse

    def __iter__(self):
        rng = np.random.default_rng(self.seed)
        for _ in range(self.n_crops):
            labels = self._grains(rng)
            volume = labels / self.phases + 0.05 * rng.standard_normal(labels.shape)
            yield (torch.from_numpy(volume[:, None].astype(np.float32)),
                   torch.from_numpy(labels.astype(np.int64)))
