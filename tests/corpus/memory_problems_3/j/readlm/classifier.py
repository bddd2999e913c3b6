import torch
import torch.nn as nn

from .batching import BASES


class GatedConv(nn.Module):
    def __init__(self, dim, kernel=15):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.conv = nn.Conv1d(dim, 2 * dim, kernel, padding=kernel // 2)

    def forward(self, x, mask):
        h = self.conv((self.norm(x) * mask).transpose(1, 2)).transpose(1, 2)
        return x + nn.functional.glu(h, dim=-1)


class ReadClassifier(nn.Module):
    def __init__(self, n_taxa, dim=128, depth=5):
        super().__init__()
        self.embed = nn.Embedding(BASES, dim, padding_idx=0)
        self.layers = nn.ModuleList(GatedConv(dim) for _ in range(depth))
        self.head = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, n_taxa))

    def forward(self, reads, lengths):
        positions = torch.arange(reads.shape[1], device=reads.device)
        mask = (positions < lengths.unsqueeze(1)).unsqueeze(-1).float()
        x = self.embed(reads)
        for layer in self.layers:
            x = layer(x, mask)
        pooled = (x * mask).sum(dim=1) / lengths.unsqueeze(1)
        return self.head(pooled)
