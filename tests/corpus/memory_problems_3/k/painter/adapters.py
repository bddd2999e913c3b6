"""Low-rank adapters for the attention projections."""
import torch
import torch.nn as nn


class LowRank(nn.Module):
    def __init__(self, base, rank, alpha):
        super().__init__()
        self.base = base
        self.down = nn.Linear(base.in_features, rank, bias=False)
        self.up = nn.Linear(rank, base.out_features, bias=False)
        nn.init.zeros_(self.up.weight)
        self.scale = alpha / rank

    def forward(self, x):
        return self.base(x) + self.scale * self.up(self.down(x))


def attach(model, rank=8, alpha=8.0, targets=("to_qkv", "to_out")):
    model.requires_grad_(False)
    model.eval()
    for block in model.blocks:
        for name in targets:
            setattr(block, name, LowRank(getattr(block, name), rank, alpha))
    return [p for p in model.parameters() if p.requires_grad]
