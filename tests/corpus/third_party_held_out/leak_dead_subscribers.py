"""Broadcasts captions of a live stream to subscribers, each with a queue of its own.

A subscriber that goes away without a farewell stays in the list, and its queue gets every caption that follows.
"""

import asyncio
import random
import sys

import torch
from torch import nn


class Channel:
    def __init__(self):
        self.queues = {}

    def subscribe(self, name):
        queue = self.queues[name] = asyncio.Queue()
        return queue

    def unsubscribe(self, name):
        del self.queues[name]

    def publish(self, logits):
        for queue in self.queues.values():
            queue.put_nowait(logits.clone())  # LEAK


class Captioner:
    def __init__(self, device, channel):
        self.device = device
        self.channel = channel
        self.model = nn.Sequential(nn.Linear(80, 128), nn.GELU(), nn.Linear(128, 256)).to(device)

    async def run(self, chunks):
        for _ in range(chunks):
            chunk = torch.randn(8, 80, device=self.device)
            with torch.no_grad():
                self.channel.publish(self.model(chunk))  # LEAK
            await asyncio.sleep(0)


async def watch(channel, name, captions, polite):
    queue = channel.subscribe(name)
    for _ in range(captions):
        await queue.get()
    if polite:
        channel.unsubscribe(name)


async def main(device):
    torch.manual_seed(25)
    torch.set_num_threads(1)
    rng = random.Random(25)
    channel = Channel()
    captioner = asyncio.create_task(Captioner(device, channel).run(300))
    watchers = []
    name = 0
    while not captioner.done():
        if len(watchers) < 5:
            polite = rng.random() < 0.7
            watchers.append(asyncio.create_task(watch(channel, name, rng.randint(20, 60), polite)))
            name += 1
        await asyncio.sleep(0)
        watchers = [watcher for watcher in watchers if not watcher.done()]
    for watcher in watchers:
        watcher.cancel()
    print(f"{name} watchers, {len(channel.queues)} queues open")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
