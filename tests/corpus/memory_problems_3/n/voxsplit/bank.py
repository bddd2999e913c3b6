"""Speaker bank: the utterance vectors seen so far, by speaker."""
from collections import defaultdict

import torch
from torch.nn import functional as F


class SpeakerBank:
    def __init__(self, threshold=0.6):
        self.threshold = threshold
        self.vectors = defaultdict(list)

    def add(self, speaker, vector):
        self.vectors[speaker].append(vector)

    def __len__(self):
        return sum(len(v) for v in self.vectors.values())

    def centroids(self):
        names = sorted(self.vectors)
        means = torch.stack([torch.stack(self.vectors[name]).mean(0) for name in names])
        return names, F.normalize(means, dim=-1)

    def affinity(self, vector):
        names, centres = self.centroids()
        return names, centres @ F.normalize(vector, dim=0)
