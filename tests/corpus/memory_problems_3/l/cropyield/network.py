import torch
from torch import nn


class CodeTables(nn.Module):
    def __init__(self, cardinalities, dim):
        super().__init__()
        self.tables = nn.ModuleDict({name: nn.Embedding(size, dim) for name, size in cardinalities.items()})

    def forward(self, codes):
        return torch.cat([table(codes[:, i]) for i, table in enumerate(self.tables.values())], dim=1)


class YieldNet(nn.Module):
    def __init__(self, cardinalities, n_numeric, dim=96, hidden=512):
        super().__init__()
        self.codes = CodeTables(cardinalities, dim)
        self.norm = nn.BatchNorm1d(n_numeric)
        n_in = dim * len(cardinalities) + n_numeric
        self.trunk = nn.Sequential(nn.Linear(n_in, hidden), nn.SiLU(), nn.Dropout(0.1),
                                   nn.Linear(hidden, hidden), nn.SiLU(), nn.Linear(hidden, 1))

    def forward(self, codes, numeric):
        x = torch.cat([self.codes(codes), self.norm(numeric)], dim=1)
        return self.trunk(x).squeeze(1)
