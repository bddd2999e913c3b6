"""Fraud scoring gateway: asyncio server that groups waiting payments; the clients come online one by one."""
import asyncio
import random
import statistics
import time

import torch
from torch import nn


class PaymentNet(nn.Module):
    def __init__(self, fields=32, width=256):
        super().__init__()
        self.embed = nn.Linear(fields, width)
        layer = nn.TransformerEncoderLayer(width, 8, 4 * width, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 4)
        self.score = nn.Linear(width, 1)

    def forward(self, history):
        return self.score(self.encoder(self.embed(history))[:, -1]).sigmoid().squeeze(1)


class Gateway:
    def __init__(self, model, device, limit=256, wait=0.002):
        self.model = model.eval()
        self.device = device
        self.limit, self.wait = limit, wait
        self.waiting = asyncio.Queue()
        self.sizes = []

    async def ask(self, history):
        answer = asyncio.get_running_loop().create_future()
        await self.waiting.put((history, answer))
        return await answer

    async def gather(self):
        group = [await self.waiting.get()]
        until = time.monotonic() + self.wait
        while len(group) < self.limit:
            left = until - time.monotonic()
            if left <= 0:
                break
            try:
                group.append(await asyncio.wait_for(self.waiting.get(), left))
            except asyncio.TimeoutError:
                break
        return group

    @torch.inference_mode()
    def score(self, histories):
        return self.model(torch.stack(histories).to(self.device)).cpu().tolist()

    async def serve(self):
        while True:
            group = await self.gather()
            scores = self.score([history for history, _ in group])
            self.sizes.append(len(group))
            for (_, answer), value in zip(group, scores):
                if not answer.done():
                    answer.set_result(value)


async def client(gateway, number, payments):
    rng = random.Random(number)
    for _ in range(payments):
        await gateway.ask(torch.full((64, 32), rng.random()))
        await asyncio.sleep(rng.random() * 0.004)


async def day(gateway, clients, payments):
    server = asyncio.create_task(gateway.serve())
    running = []
    for number in range(clients):
        running.append(asyncio.create_task(client(gateway, number, payments)))
        await asyncio.sleep(0.02)
        if number % 40 == 39:
            recent = statistics.mean(gateway.sizes[-20:])
            print(f"{number + 1} clients, {recent:.0f} payments a batch, "
                  f"peak {torch.cuda.max_memory_allocated() >> 20} MiB", flush=True)
    await asyncio.gather(*running)
    server.cancel()


def main():
    torch.manual_seed(0)
    device = torch.device("cuda")
    gateway = Gateway(PaymentNet().to(device), device)
    asyncio.run(day(gateway, clients=120, payments=250))
    print(f"{sum(gateway.sizes)} payments in {len(gateway.sizes)} batches, largest {max(gateway.sizes)}")


if __name__ == "__main__":
    main()
