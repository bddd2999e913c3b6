import torch
import torch.nn.functional as F
from torch import nn


class AtomMixer(nn.Module):
    def __init__(self, width, atoms):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.across = nn.Linear(atoms, atoms)
        self.within = nn.Sequential(nn.Linear(width, 2 * width), nn.SiLU(), nn.Linear(2 * width, width))

    def forward(self, x):
        x = x + self.across(self.norm(x).transpose(1, 2)).transpose(1, 2)
        return x + self.within(x)


class ContactHead(nn.Module):
    """Distance bins for every pair of atoms."""

    def __init__(self, width, bins, rank=24):
        super().__init__()
        self.left, self.right = nn.Linear(width, rank), nn.Linear(width, rank)
        self.bins = nn.Linear(rank, bins)

    def forward(self, x):
        pairs = F.silu(self.left(x).unsqueeze(2) + self.right(x).unsqueeze(1))
        return self.bins(pairs)


class ConformerNet(nn.Module):
    def __init__(self, elements=20, atoms=48, width=128, layers=4, bins=16):
        super().__init__()
        self.element = nn.Embedding(elements, width)
        self.place = nn.Linear(3, width)
        self.mixers = nn.Sequential(*[AtomMixer(width, atoms) for _ in range(layers)])
        self.energy = nn.Linear(width, 1)
        self.contacts = ContactHead(width, bins)

    def forward(self, elements, positions):
        x = self.mixers(self.element(elements) + self.place(positions))
        return self.energy(x).sum((1, 2)), self.contacts(x)
