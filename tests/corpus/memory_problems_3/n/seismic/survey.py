import asyncio
from dataclasses import dataclass

import torch


@dataclass
class Request:
    line: str
    inlines: int
    crosslines: int
    samples: int
    client: str


class Archive:
    """Hands out amplitude cubes, quantised to eight bits as they are stored."""

    def __init__(self, seed):
        generator = torch.Generator().manual_seed(seed)
        self.master = torch.randint(-127, 127, (160, 160, 384), generator=generator, dtype=torch.int8)

    async def read(self, request):
        await asyncio.sleep(0.002)
        return self.master[:request.inlines, :request.crosslines, :request.samples]


def booking(count, seed):
    generator = torch.Generator().manual_seed(seed)
    clients = ["north", "delta", "basin", "ridge"]
    for i in range(count):
        inl, xl = torch.randint(112, 160, (2,), generator=generator).tolist()
        samples = int(torch.randint(2, 4, (1,), generator=generator)) * 128
        yield Request(f"L{i:03d}", inl, xl, samples, clients[i % 4])
