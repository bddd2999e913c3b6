"""An asyncio embedding server; the state of a request is in a context variable, and a timer warns if it takes too long.

The timer (of an hour) is not cancelled when the request is done; the event loop holds it, and it holds a copy of the context.
"""

import asyncio
import contextvars
import random
import sys

import torch
from torch import nn

current = contextvars.ContextVar("current", default=None)


class RequestState:
    def __init__(self, number, hidden):
        self.number = number
        self.hidden = hidden


class EmbeddingServer:
    def __init__(self, device):
        self.device = device
        self.embed = nn.Embedding(1000, 48).to(device)
        self.layer = nn.TransformerEncoderLayer(48, 4, 128, batch_first=True, dropout=0.0).to(device).eval()
        self.gate = asyncio.Semaphore(3)
        self.late = 0

    def warn(self, number):
        self.late += 1
        print(f"request {number} takes more than an hour")

    async def handle(self, number, tokens):
        async with self.gate:
            current.set(RequestState(number, self.look_up(tokens.to(self.device))))  # LEAK
            asyncio.get_running_loop().call_later(3600, self.warn, number)  # LEAK
            await asyncio.sleep(0)
            vectors = self.pool()
            await asyncio.sleep(0)
            return vectors.cpu()

    @torch.inference_mode()
    def look_up(self, tokens):
        return self.embed(tokens)  # LEAK

    @torch.inference_mode()
    def pool(self):
        output = self.layer(current.get().hidden)
        return nn.functional.normalize(output.mean(dim=1), dim=1)


async def serve(device):
    rng = random.Random(15)
    server = EmbeddingServer(device)
    norm = 0.0
    for wave in range(420):
        tasks = []
        for i in range(rng.randint(2, 6)):
            tokens = torch.randint(0, 1000, (rng.randint(1, 4), rng.randint(10, 60)))
            tasks.append(asyncio.create_task(server.handle(wave * 10 + i, tokens)))  # LEAK
        for vectors in await asyncio.gather(*tasks):
            norm += vectors.abs().sum().item()
    print(f"checksum {norm:.3f}")


def main():
    torch.manual_seed(15)
    torch.set_num_threads(1)
    asyncio.run(serve(sys.argv[1]))


if __name__ == "__main__":
    main()
