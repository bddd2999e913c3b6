import asyncio
import sys
import time

import torch

from seismic.attributes import NAMES, attribute_stack
from seismic.faultnet import FaultNet
from seismic.survey import Archive, booking


class Gateway:
    """Answers interpretation requests; one request at a time runs on the card."""

    def __init__(self, model, archive, device, slab=16):
        self.model = model.eval()
        self.archive = archive
        self.device = device
        self.slab = slab
        self.card = asyncio.Semaphore(1)
        self.finished = 0
        self.started = time.time()

    def prepare(self, cube):
        with torch.inference_mode():
            return attribute_stack(cube.to(self.device))

    async def interpret(self, stack):
        planes = []
        for i in range(0, stack.shape[1], self.slab):
            with torch.inference_mode():
                faults = self.model(stack[:, i:i + self.slab])
                planes.append((faults * 255).to(torch.uint8).cpu())
            await asyncio.sleep(0)
        return torch.cat(planes)

    async def answer(self, request):
        cube = await self.archive.read(request)
        stack = self.prepare(cube)
        async with self.card:
            faults = await self.interpret(stack)
        self.finished += 1
        if self.finished % 8 == 0:
            print(f"{self.finished:3d} lines interpreted, {time.time() - self.started:.1f}s", flush=True)
        return request.line, faults.shape, float(faults.float().mean()) / 255


async def serve(gateway, requests):
    print(f"{len(requests)} requests from {len({r.client for r in requests})} clients", flush=True)
    return await asyncio.gather(*(gateway.answer(r) for r in requests))


def single_line(gateway, request):
    line, shape, density = asyncio.run(gateway.answer(request))
    print(f"self test {line}: {tuple(shape)} density {density:.3f}", flush=True)
    gateway.finished = 0


def main():
    device = torch.device(sys.argv[1] if len(sys.argv) > 1 else "cuda")
    torch.manual_seed(31)
    model = FaultNet(len(NAMES)).to(device)
    gateway = Gateway(model, Archive(seed=9), device)
    requests = list(booking(40, seed=12))
    single_line(gateway, requests[0])
    answers = asyncio.run(serve(gateway, requests[1:]))
    voxels = sum(a * b * c for _, (a, b, c), _ in answers)
    print(f"{len(answers)} lines, {voxels / 1e6:.0f}M voxels interpreted")


if __name__ == "__main__":
    main()
