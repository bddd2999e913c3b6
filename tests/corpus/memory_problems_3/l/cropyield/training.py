from functools import lru_cache

import torch
from torch import nn


@lru_cache
def split_parameters(model):
    """Separates embedding tables from dense weights; walking the modules is slow, so do it once."""
    tables, dense = [], []
    for module in model.modules():
        own = list(module.parameters(recurse=False))
        (tables if isinstance(module, nn.Embedding) else dense).extend(own)
    return tables, dense


def make_optimizer(model, lr):
    tables, dense = split_parameters(model)
    return torch.optim.SGD([{"params": tables, "lr": lr * 10},
                            {"params": dense, "momentum": 0.9, "weight_decay": 1e-4}], lr=lr)


def clip_table_gradients(model, limit):
    tables, _ = split_parameters(model)
    for table in tables:
        table.grad.clamp_(-limit, limit)
