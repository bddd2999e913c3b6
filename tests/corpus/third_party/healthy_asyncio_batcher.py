"""An asyncio server that joins concurrent requests into batches; every task leaves the set of tasks when done."""

import asyncio
import random
import sys

import torch
from torch import nn


class Batcher:
    def __init__(self, device, largest=16):
        self.device = device
        self.largest = largest
        self.model = nn.Sequential(nn.Linear(60, 120), nn.ReLU(), nn.Linear(120, 240)).to(device)
        self.waiting = asyncio.Queue()
        self.tasks = set()

    def start(self, coroutine):
        task = asyncio.get_running_loop().create_task(coroutine)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task

    async def predict(self, features):
        answer = asyncio.get_running_loop().create_future()
        await self.waiting.put((features, answer))
        return await answer

    async def serve(self):
        while True:
            batch = [await self.waiting.get()]
            while len(batch) < self.largest and not self.waiting.empty():
                batch.append(self.waiting.get_nowait())
            with torch.inference_mode():
                outputs = self.model(torch.stack([f for f, _ in batch]).to(self.device))
            for (_, answer), output in zip(batch, outputs, strict=True):
                if not answer.cancelled():
                    answer.set_result(output.clone())


async def client(batcher, seed, requests):
    rng = random.Random(seed)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(requests):
        await batcher.predict(torch.randn(60, generator=generator))
        for _ in range(rng.randrange(4)):
            await asyncio.sleep(0)


async def main(device):
    batcher = Batcher(device)
    server = asyncio.create_task(batcher.serve())
    await asyncio.gather(*(batcher.start(client(batcher, seed, 60)) for seed in range(12)))
    server.cancel()
    await asyncio.sleep(0)
    print(len(batcher.tasks), "tasks left")


if __name__ == "__main__":
    torch.manual_seed(2)
    torch.set_num_threads(1)
    asyncio.run(main(sys.argv[1]))
