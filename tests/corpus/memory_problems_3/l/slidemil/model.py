import torch
import torch.nn as nn


class GatedPooling(nn.Module):
    def __init__(self, dim, hidden):
        super().__init__()
        self.v = nn.Linear(dim, hidden)
        self.u = nn.Linear(dim, hidden)
        self.w = nn.Linear(hidden, 1)

    def forward(self, tiles):
        score = self.w(torch.tanh(self.v(tiles)) * torch.sigmoid(self.u(tiles)))
        weight = torch.softmax(score, dim=0)
        return (weight * tiles).sum(0)


class SlideClassifier(nn.Module):
    """Tile features of one slide -> tumour grade."""

    def __init__(self, features=1536, dim=768, depth=6, grades=5):
        super().__init__()
        self.project = nn.Sequential(nn.Linear(features, dim), nn.GELU())
        layer = nn.TransformerEncoderLayer(dim, 12, dim * 4, dropout=0.1, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.pool = GatedPooling(dim, 256)
        self.grade = nn.Linear(dim, grades)

    def forward(self, tiles):
        x = self.encoder(self.project(tiles).unsqueeze(0))
        return self.grade(self.pool(x.squeeze(0))).unsqueeze(0)
