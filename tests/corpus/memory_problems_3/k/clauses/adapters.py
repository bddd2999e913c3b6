import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class LowRankLinear(nn.Module):
    """Frozen linear layer plus a trainable low-rank update."""

    def __init__(self, base, rank=16, alpha=32.0):
        super().__init__()
        out_f, in_f = base.weight.shape
        self.weight = nn.Parameter(base.weight.data, requires_grad=False)
        kw = dict(device=base.weight.device, dtype=base.weight.dtype)
        self.down = nn.Parameter(torch.empty(rank, in_f, **kw))
        self.up = nn.Parameter(torch.zeros(out_f, rank, **kw))
        nn.init.kaiming_uniform_(self.down, a=math.sqrt(5))
        self.scale = alpha / rank

    def forward(self, x):
        weight = torch.addmm(self.weight, self.up, self.down, alpha=self.scale)
        return F.linear(x, weight)

    def merged(self):
        return self.weight + self.scale * (self.up @ self.down)


def attach(model, targets, rank):
    model.requires_grad_(False)
    count = 0
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.Linear) and name in targets:
                setattr(parent, name, LowRankLinear(child, rank))
                count += 1
    return count
