"""Categorical features of the advert click log and the model that embeds them."""
from dataclasses import dataclass

import torch
from torch import nn


@dataclass(frozen=True)
class Column:
    name: str
    values: int


COLUMNS = (
    Column("site", 1_200_000), Column("device", 40_000), Column("campaign", 900_000), Column("creative", 1_500_000),
    Column("hour", 24), Column("region", 6_000), Column("query", 2_000_000),
)


class ClickModel(nn.Module):
    def __init__(self, columns=COLUMNS, dim=64, hidden=512):
        super().__init__()
        self.tables = nn.ModuleDict({c.name: nn.Embedding(c.values, dim) for c in columns})
        width = dim * len(columns)
        self.deep = nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(),
                                  nn.Linear(hidden, 1))
        self.wide = nn.Linear(width, 1)

    def forward(self, rows):
        parts = [table(rows[:, i]) for i, table in enumerate(self.tables.values())]
        x = torch.cat(parts, dim=1)
        return (self.deep(x) + self.wide(x)).squeeze(1)


def click_log(rows, batch_size, seed=0):
    generator = torch.Generator().manual_seed(seed)
    for _ in range(0, rows, batch_size):
        columns = [torch.randint(0, c.values, (batch_size,), generator=generator) for c in COLUMNS]
        clicked = (torch.rand(batch_size, generator=generator) < 0.03).float()
        yield torch.stack(columns, dim=1), clicked
