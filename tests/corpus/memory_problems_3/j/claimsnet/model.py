import torch
import torch.nn as nn


class FrequencyNet(nn.Module):
    """Embeddings for the rating factors, then a small MLP with one log frequency per policy."""

    def __init__(self, n_numeric, cardinalities, width=256, embed_dim=8):
        super().__init__()
        self.embeddings = nn.ModuleList(nn.Embedding(c, embed_dim) for c in cardinalities)
        self.body = nn.Sequential(
            nn.Linear(n_numeric + embed_dim * len(cardinalities), width), nn.SiLU(),
            nn.LayerNorm(width),
            nn.Linear(width, width), nn.SiLU(),
            nn.Dropout(0.1),
            nn.Linear(width, 1),
        )

    def forward(self, numeric, codes):
        embedded = [table(codes[:, i]) for i, table in enumerate(self.embeddings)]
        return self.body(torch.cat([numeric, *embedded], dim=1)).squeeze(-1)
