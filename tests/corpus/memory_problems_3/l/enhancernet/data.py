import numpy as np
import torch


class GenomeWindows:
    def __init__(self, length, bins, tracks, seed):
        self.length, self.bins, self.tracks = length, bins, tracks
        self.rng = np.random.default_rng(seed)

    def batch(self, size):
        bases = torch.from_numpy(self.rng.integers(0, 4, (size, self.length)))
        dna = torch.zeros(size, 4, self.length)
        dna.scatter_(1, bases.unsqueeze(1), 1.0)
        coverage = torch.from_numpy(self.rng.gamma(2.0, 1.0, (size, self.bins, self.tracks)).astype(np.float32))
        return dna, coverage

    def reverse_complement(self, dna, coverage):
        return dna.flip(1, 2), coverage.flip(1)
