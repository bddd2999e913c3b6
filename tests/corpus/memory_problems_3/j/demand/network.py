import torch
import torch.nn as nn


class DemandNet(nn.Module):
    def __init__(self, vocab_sizes, dims, n_numeric, hidden=512):
        super().__init__()
        self.names = list(vocab_sizes)
        self.embed = nn.ModuleDict({
            name: nn.Embedding(size, dims[name]) for name, size in vocab_sizes.items()
        })
        width = sum(dims[name] for name in self.names) + n_numeric
        self.tower = nn.Sequential(
            nn.Linear(width, hidden), nn.BatchNorm1d(hidden), nn.ReLU(),
            nn.Linear(hidden, hidden), nn.BatchNorm1d(hidden), nn.ReLU(),
            nn.Linear(hidden, 1),
        )

    def forward(self, codes, numeric):
        parts = [self.embed[name](codes[:, i]) for i, name in enumerate(self.names)]
        return self.tower(torch.cat(parts + [numeric], dim=1)).squeeze(-1)
