import torch
from torch import nn
import torch.nn.functional as F


class VolSurface(nn.Module):
    """Implied volatility as a smooth function of log-moneyness and time to expiry."""

    def __init__(self, hidden, depth):
        super().__init__()
        sizes = [3] + [hidden] * depth
        layers = []
        for a, b in zip(sizes[:-1], sizes[1:]):
            layers += [nn.Linear(a, b), nn.Tanh()]
        self.body = nn.Sequential(*layers)
        self.out = nn.Linear(hidden, 1)

    def forward(self, moneyness, tenor):
        features = torch.stack([moneyness, tenor.sqrt(), moneyness / (tenor + 0.05).sqrt()], dim=-1)
        return 0.02 + F.softplus(self.out(self.body(features)).squeeze(-1))


def arbitrage_penalty(sigma, moneyness):
    order = moneyness.argsort()
    slope = sigma[order].diff()
    return F.relu(slope.abs() - 0.5).pow(2).mean()
