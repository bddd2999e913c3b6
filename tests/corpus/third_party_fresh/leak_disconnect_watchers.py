"""An asyncio completion server over lasting connections; a task watches for a disconnect, to stop the work in that case.

When the answer is complete, the watcher is forgotten, not cancelled: it waits on for its client and holds the generation.
"""

import asyncio
import random
import sys

import torch
from torch import nn


class Decoder(nn.Module):
    def __init__(self, words=500, width=48):
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, words)

    @torch.inference_mode()
    def forward(self, token, generation):
        q, k, v = self.qkv(self.embed(token)).chunk(3, dim=1)
        n = generation.length
        generation.keys[:, n], generation.values[:, n] = k, v
        generation.length = n + 1
        seen = generation.keys[:, : n + 1]
        weights = (seen @ q.unsqueeze(2)).squeeze(2).softmax(dim=1)
        return self.out((weights.unsqueeze(1) @ generation.values[:, : n + 1]).squeeze(1))


class Generation:
    def __init__(self, samples, limit, width, device):
        self.keys = torch.zeros(samples, limit, width, device=device)  # LEAK
        self.values = torch.zeros(samples, limit, width, device=device)  # LEAK
        self.length = 0
        self.stopped = False


class Connection:
    def __init__(self, name):
        self.name = name
        self.gone = asyncio.Event()
        self.answers = 0


class Server:
    def __init__(self, device):
        self.device = device
        self.model = Decoder().to(device).eval()
        self.background = set()

    async def watch(self, connection, generation):
        await connection.gone.wait()
        generation.stopped = True

    async def complete(self, connection, limit, samples):
        generation = Generation(samples, limit, 48, self.device)  # LEAK
        watcher = asyncio.create_task(self.watch(connection, generation))  # LEAK
        self.background.add(watcher)  # LEAK
        watcher.add_done_callback(self.background.discard)
        token = torch.zeros(samples, dtype=torch.long, device=self.device)
        produced = 0
        while generation.length < limit and not generation.stopped:
            token = self.model(token, generation).argmax(dim=1)
            produced += samples
            if generation.length % 8 == 0:
                await asyncio.sleep(0)
        connection.answers += 1
        return produced


async def serve(device):
    rng = random.Random(16)
    server = Server(device)
    connections = [Connection(f"client-{i}") for i in range(8)]
    produced = 0
    for _ in range(220):
        chosen = rng.sample(connections, 3)
        answers = await asyncio.gather(*(server.complete(c, rng.randint(16, 40), rng.randint(1, 4)) for c in chosen))  # LEAK
        produced += sum(answers)
    for connection in connections:
        connection.gone.set()
    await asyncio.gather(*server.background)
    print(f"{produced} tokens in {sum(c.answers for c in connections)} answers")


def main():
    torch.manual_seed(16)
    torch.set_num_threads(1)
    asyncio.run(serve(sys.argv[1]))


if __name__ == "__main__":
    main()
