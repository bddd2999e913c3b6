"""Molecule encoder with one head per assay; a head is made when the first batch of its assay arrives."""
import torch
from torch import nn


class MoleculeEncoder(nn.Module):
    def __init__(self, atoms=64, width=512, rounds=4):
        super().__init__()
        self.atoms = nn.Embedding(atoms, width)
        self.message = nn.ModuleList(nn.Linear(width, width) for _ in range(rounds))
        self.update = nn.ModuleList(nn.GRUCell(width, width) for _ in range(rounds))

    def forward(self, atoms, bonds):
        x = self.atoms(atoms)
        batch, count, width = x.shape
        for message, update in zip(self.message, self.update):
            gathered = bonds @ torch.relu(message(x))
            x = update(gathered.reshape(-1, width), x.reshape(-1, width)).view(batch, count, width)
        return x.mean(dim=1)


class MultiAssay(nn.Module):
    def __init__(self, hidden=2048):
        super().__init__()
        self.encoder = MoleculeEncoder()
        self.heads = nn.ModuleDict()
        self.hidden = hidden

    def head(self, assay, device):
        if assay not in self.heads:
            self.heads[assay] = nn.Sequential(nn.LazyLinear(self.hidden), nn.SiLU(), nn.LazyLinear(1)).to(device)
            return self.heads[assay], True
        return self.heads[assay], False

    def forward(self, assay, atoms, bonds):
        features = self.encoder(atoms, bonds)
        head, fresh = self.head(assay, features.device)
        return head(features).squeeze(1), fresh
