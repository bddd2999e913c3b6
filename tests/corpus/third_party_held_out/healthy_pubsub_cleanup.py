"""Broadcasts features to subscribers with bounded queues: the slow lose the oldest, who goes away is removed."""

import asyncio
import random
import sys

import torch
from torch import nn


class Hub:
    def __init__(self, depth):
        self.depth = depth
        self.queues = {}

    def publish(self, features):
        for queue in self.queues.values():
            if queue.full():
                queue.get_nowait()
            queue.put_nowait(features.clone())

    async def listen(self, name, count, pause):
        queue = self.queues[name] = asyncio.Queue(maxsize=self.depth)
        try:
            for _ in range(count):
                features = await queue.get()
                features.sum(dim=0)
                del features
                for _ in range(pause):
                    await asyncio.sleep(0)
        finally:
            del self.queues[name]


async def produce(hub, device, count):
    model = nn.Sequential(nn.Linear(48, 96), nn.ReLU(), nn.Linear(96, 128)).to(device)
    for _ in range(count):
        with torch.no_grad():
            hub.publish(model(torch.randn(12, 48, device=device)))
        await asyncio.sleep(0)


async def main(device):
    torch.manual_seed(73)
    torch.set_num_threads(1)
    rng = random.Random(73)
    hub = Hub(depth=8)
    producer = asyncio.create_task(produce(hub, device, 500))
    listeners = set()
    names = 0
    while not producer.done():
        if len(listeners) < 6:
            coroutine = hub.listen(names, rng.randint(10, 40), rng.choice([0, 0, 1, 3]))
            task = asyncio.create_task(coroutine, name=f"listener-{names:04}")
            listeners.add(task)
            task.add_done_callback(listeners.discard)
            names += 1
        # Some hang up in the middle.
        if rng.random() < 0.04:
            sorted(listeners, key=asyncio.Task.get_name)[0].cancel()
        await asyncio.sleep(0)
    for task in listeners:
        task.cancel()
    await asyncio.gather(*listeners, return_exceptions=True)
    print(f"{names} listeners, {len(hub.queues)} queues left")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
