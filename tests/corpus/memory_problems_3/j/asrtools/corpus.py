"""Court hearings with their official transcripts."""
from dataclasses import dataclass

import numpy as np
import torch


@dataclass
class Hearing:
    name: str
    n_frames: int
    n_pieces: int
    seed: int

    def mel(self):
        generator = torch.Generator().manual_seed(self.seed)
        base = torch.randn(1, 64, 80, generator=generator)
        return base.repeat(1, -(-self.n_frames // 64), 1)[:, : self.n_frames]

    def pieces(self, vocabulary):
        generator = torch.Generator().manual_seed(self.seed + 1)
        return torch.randint(1, vocabulary, (self.n_pieces,), generator=generator)


def load_hearings(count, seed):
    rng = np.random.default_rng(seed)
    hearings = []
    for index in range(count):
        n_frames = int(rng.integers(5_000, 9_000))
        rate = rng.uniform(0.06, 0.09) if rng.random() > 0.3 else rng.uniform(0.55, 0.7)
        hearings.append(Hearing(f"hearing_{index:04d}", n_frames, int(rate * n_frames), index))
    return hearings
