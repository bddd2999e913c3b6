"""Serves six models side by side, each on a stream of its own, with a calibration at start.

True cause: the allocator keeps the free memory of each stream apart. Each stream's calibration leaves some 180 MiB free,
pinned by the calibrated table of 12 MiB that was allocated in the same segment; requests run on the default stream and
can use none of it.
The line: `self.table = torch.addcmul(low, high - low, steps)`, inside `with torch.cuda.stream(self.stream)`.
Cure: calibrate on the default stream (or all on one side stream), one model after the other; or make the tables before
the large buffers.
"""

import torch
from torch import nn


class ServedModel:
    def __init__(self, name, dim=1536):
        self.name = name
        self.stream = torch.cuda.Stream()
        with torch.device("cuda"):
            self.net = nn.Sequential(nn.Linear(dim, 2 * dim), nn.SiLU(), nn.Linear(2 * dim, dim))
        self.dim = dim
        self.table = None

    def observe(self, samples):
        x = torch.rand(samples, self.dim, device="cuda")
        x = x.clamp(-4, 4)
        return x.amin(dim=0), x.amax(dim=0)

    def calibrate(self, samples=32768):
        with torch.cuda.stream(self.stream):
            low, high = self.observe(samples)
            steps = torch.linspace(0, 1, 2048, device="cuda")[:, None]
            self.table = torch.addcmul(low, high - low, steps)  # CAUSE
        self.stream.synchronize()

    def answer(self, x):
        low, high = self.table[0], self.table[-1]
        return self.net(x.clamp(low, high))


class Server:
    def __init__(self, count=6):
        self.models = [ServedModel(f"model-{i}") for i in range(count)]
        for model in self.models:
            model.calibrate()

    def handle(self, number, rows):
        model = self.models[number % len(self.models)]
        x = torch.randn(rows, model.dim).to("cuda", non_blocking=True)
        x = x.repeat(16, 1)
        return model.name, model.answer(x).float().mean().item()


@torch.inference_mode()
def main():
    torch.manual_seed(13)
    server = Server()
    for number in range(600):
        name, value = server.handle(number, rows=256 + 16 * (number % 9))
        if number % 100 == 0:
            print(f"request {number} by {name}: {value:.4f}", flush=True)


if __name__ == "__main__":
    main()
