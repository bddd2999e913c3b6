from dataclasses import dataclass

import torch


@dataclass
class AssayTask:
    name: str
    support: tuple
    query: tuple


def _draw(n, gen, device):
    bits = (torch.rand(n, 2048, generator=gen) < 0.03).float()
    desc = torch.randn(n, 200, generator=gen)
    labels = torch.randint(0, 2, (n,), generator=gen)
    return bits.to(device), desc.to(device), labels.to(device)


def assay_stream(count, device, n_support=64, n_query=256, seed=0):
    gen = torch.Generator().manual_seed(seed)
    for i in range(count):
        yield AssayTask(f"CHEMBL{3000 + 7 * i}", _draw(n_support, gen, device), _draw(n_query, gen, device))
