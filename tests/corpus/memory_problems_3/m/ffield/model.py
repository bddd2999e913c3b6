import math

import torch
from torch import nn


class RadialBasis(nn.Module):
    def __init__(self, n_basis: int, cutoff: float):
        super().__init__()
        self.cutoff = cutoff
        self.register_buffer("centers", torch.linspace(0.5, cutoff, n_basis))
        self.width = cutoff / n_basis

    def forward(self, dist):
        gauss = torch.exp(-((dist.unsqueeze(-1) - self.centers) / self.width) ** 2)
        envelope = 0.5 * (torch.cos(math.pi * dist / self.cutoff) + 1.0)
        return gauss * envelope.unsqueeze(-1)


class InteractionBlock(nn.Module):
    def __init__(self, width: int, n_basis: int):
        super().__init__()
        self.filter_net = nn.Sequential(nn.Linear(n_basis, width), nn.SiLU(), nn.Linear(width, width))
        self.lin_in = nn.Linear(width, width, bias=False)
        self.update = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width))

    def forward(self, h, basis):
        weight = self.filter_net(basis)
        msg = torch.einsum("bijd,bjd->bid", weight, self.lin_in(h))
        return h + self.update(msg)


class EnergyNet(nn.Module):
    def __init__(self, n_species=8, width=64, n_basis=24, n_blocks=3, cutoff=6.0):
        super().__init__()
        self.species = nn.Embedding(n_species, width)
        self.basis = RadialBasis(n_basis, cutoff)
        self.blocks = nn.ModuleList([InteractionBlock(width, n_basis) for _ in range(n_blocks)])
        self.readout = nn.Sequential(nn.Linear(width, width // 2), nn.SiLU(), nn.Linear(width // 2, 1))

    def forward(self, species, positions):
        diff = positions.unsqueeze(2) - positions.unsqueeze(1)
        dist = torch.sqrt((diff * diff).sum(-1) + 1e-6)
        basis = self.basis(dist)
        h = self.species(species)
        for block in self.blocks:
            h = block(h, basis)
        return self.readout(h).squeeze(-1).sum(dim=1)
