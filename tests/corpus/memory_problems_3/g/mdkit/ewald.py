"""Reciprocal-space part of the Ewald sum for a batch of periodic systems."""
import math

import torch
import torch.nn as nn


class ChargeNet(nn.Module):
    """Predicts partial charges from the chemical environment label of each atom."""

    def __init__(self, n_types=16, width=64):
        super().__init__()
        self.embed = nn.Embedding(n_types, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, width), nn.SiLU(),
            nn.Linear(width, width), nn.SiLU(),
            nn.Linear(width, 1))

    def forward(self, types):
        return self.mlp(self.embed(types)).squeeze(-1)


class EwaldModel(nn.Module):
    def __init__(self, n_systems, box, k_max=2, alpha=0.35):
        super().__init__()
        self.charges = ChargeNet()
        self.alpha = alpha
        self.volume = box ** 3
        n = torch.arange(-k_max, k_max + 1, dtype=torch.float32)
        grid = torch.cartesian_prod(n, n, n)
        grid = grid[grid.abs().sum(1) > 0]
        self.register_buffer("kvecs", 2 * math.pi / box * grid)
        self.register_buffer("_energies_buf", torch.zeros(n_systems), persistent=False)

    def per_atom_energies(self, positions, types, system):
        q = self.charges(types)
        phase = positions @ self.kvecs.T
        n_systems = self._energies_buf.shape[0]
        re = torch.zeros(n_systems, phase.shape[1], device=phase.device)
        im = torch.zeros_like(re)
        re = re.index_add(0, system, q[:, None] * phase.cos())
        im = im.index_add(0, system, q[:, None] * phase.sin())
        k2 = self.kvecs.pow(2).sum(1)
        green = torch.exp(-k2 / (4 * self.alpha ** 2)) / k2 * (2 * math.pi / self.volume)
        local = (re[system] * phase.cos() + im[system] * phase.sin()) @ green
        return q * local - self.alpha / math.sqrt(math.pi) * q.pow(2)

    def forward(self, positions, types, system):
        per_atom = self.per_atom_energies(positions, types, system)
        # reuse one buffer for all steps instead of allocating a new one
        self._energies_buf.zero_()
        self._energies_buf.scatter_add_(0, system, per_atom)
        return self._energies_buf.clone()
