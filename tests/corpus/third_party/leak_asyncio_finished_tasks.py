"""An asyncio server that runs one task per request and keeps the tasks, lest they be garbage collected.

Finished tasks are never discarded from the collection, and with each of them its result is kept.
"""

import asyncio
import random
import sys

import torch
from torch import nn


class Server:
    def __init__(self, device):
        self.device = device
        self.model = nn.Sequential(nn.Linear(100, 200), nn.GELU(), nn.Linear(200, 600)).to(device)
        self.tasks = []
        self.served = 0

    async def handle(self, features):
        await asyncio.sleep(0)
        with torch.no_grad():
            output = self.model(features.to(self.device))  # LEAK
        await asyncio.sleep(0)
        self.served += 1
        return output

    def dispatch(self, features):
        task = asyncio.get_running_loop().create_task(self.handle(features))
        self.tasks.append(task)  # LEAK
        return task


async def client(server, rng, requests):
    for _ in range(requests):
        size = rng.randint(1, 6)
        server.dispatch(torch.randn(size, 100))
        if rng.random() < 0.5:
            await asyncio.sleep(0)
    await asyncio.sleep(0)


async def main(device):
    server = Server(device)
    await asyncio.gather(*(client(server, random.Random(i), 150) for i in range(4)))
    while server.served < 600:
        await asyncio.sleep(0)
    print("served:", server.served)


if __name__ == "__main__":
    torch.manual_seed(1)
    torch.set_num_threads(1)
    asyncio.run(main(sys.argv[1]))
