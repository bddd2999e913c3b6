"""An asyncio chat server with a state per conversation: more and more people talk until the evening, then it ebbs; idle conversations expire."""

import asyncio
import math
import random
import sys

import torch
from torch import nn


class Conversation:
    def __init__(self, user, device):
        self.user = user
        self.context = torch.zeros(0, 64, device=device)
        self.seen = 0


class Server:
    def __init__(self, device):
        self.device = device
        self.words = nn.Embedding(400, 64).to(device)
        self.cell = nn.MultiheadAttention(64, 4).to(device).eval()
        self.open = {}
        self.tick = 0
        self.peak = 0

    @torch.no_grad()
    async def say(self, user, length):
        await asyncio.sleep(0)
        conversation = self.open.setdefault(user, Conversation(user, self.device))
        conversation.seen = self.tick
        text = self.words(torch.randint(0, 400, (length,), device=self.device))
        context = torch.cat([conversation.context, text])[-96:]
        answer, _ = self.cell(text, context, context, need_weights=False)
        conversation.context = torch.cat([context, answer])[-96:].clone()
        self.peak = max(self.peak, len(self.open))

    async def janitor(self, idle):
        for user in [u for u, c in self.open.items() if self.tick - c.seen > idle]:
            del self.open[user]


async def day(device):
    rng = random.Random(211)
    server = Server(device)
    newcomer = 0
    for tick in range(120):
        server.tick = tick
        # The tide: most people come at tick 60.
        arrivals = int(9 * math.exp(-(((tick - 60) / 25) ** 2)))
        users = [newcomer + i for i in range(arrivals)]
        newcomer += arrivals
        present = list(server.open)
        users += rng.sample(present, len(present) // 8)
        await asyncio.gather(*(server.say(user, rng.randint(4, 20)) for user in users))
        await server.janitor(idle=5)
    return server


def main():
    torch.manual_seed(211)
    torch.set_num_threads(1)
    server = asyncio.run(day(sys.argv[1]))
    print(f"{server.peak} conversations at the peak, {len(server.open)} at the end")


if __name__ == "__main__":
    main()
