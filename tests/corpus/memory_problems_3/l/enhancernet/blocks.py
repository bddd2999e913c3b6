import torch
import torch.nn as nn
import torch.nn.functional as F


class ConvTower(nn.Module):
    """One-hot DNA -> bins of 32 bp."""

    def __init__(self, channels):
        super().__init__()
        layers, cin = [], 4
        for cout in channels:
            layers += [nn.Conv1d(cin, cout, 9, padding=4), nn.BatchNorm1d(cout), nn.GELU(), nn.MaxPool1d(2)]
            cin = cout
        self.layers = nn.Sequential(*layers)

    def forward(self, x):
        return self.layers(x)


class MixerBlock(nn.Module):
    def __init__(self, dim, heads, dropout):
        super().__init__()
        self.norm1 = nn.LayerNorm(dim)
        self.attn = nn.MultiheadAttention(dim, heads, dropout=dropout, batch_first=True)
        self.norm2 = nn.LayerNorm(dim)
        self.ffn = nn.Sequential(
            nn.Linear(dim, dim * 2), nn.GELU(), nn.Dropout(dropout), nn.Linear(dim * 2, dim)
        )
        self.drop = nn.Dropout(dropout)

    def forward(self, x):
        y = self.norm1(x)
        mixed, _ = self.attn(y, y, y)
        x = x + self.drop(mixed)
        return x + self.drop(self.ffn(self.norm2(x)))


class TrackHead(nn.Module):
    def __init__(self, dim, tracks):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.proj = nn.Linear(dim, tracks)

    def forward(self, x):
        return F.softplus(self.proj(self.norm(x)))


def poisson_multinomial(pred, target, eps=1e-6):
    total_pred, total = pred.sum(1), target.sum(1)
    poisson = total_pred - total * torch.log(total_pred + eps)
    share = torch.log(pred / (total_pred.unsqueeze(1) + eps) + eps)
    return poisson.mean() - 5.0 * (target * share).mean()
