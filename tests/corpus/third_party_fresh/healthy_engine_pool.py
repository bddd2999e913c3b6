"""Speech commands on threads; engines (a model copy and its buffers) are made when all are busy, eight at most, and then reused."""

import concurrent.futures
import contextlib
import copy
import random
import sys
import threading

import torch
from torch import nn


class Engine:
    def __init__(self, model, device, longest=6000):
        self.model = copy.deepcopy(model).to(device).eval()
        self.audio = torch.zeros(longest, device=device)

    @torch.inference_mode()
    def run(self, clip):
        self.audio[: len(clip)].copy_(clip)
        frames = self.audio[: len(clip)].unfold(0, 200, 100)
        return self.model(frames.unsqueeze(0)).argmax(dim=1).item()


class CommandModel(nn.Module):
    def __init__(self, commands=10):
        super().__init__()
        self.front = nn.Linear(200, 64)
        self.rnn = nn.GRU(64, 64, batch_first=True)
        self.out = nn.Linear(64, commands)

    def forward(self, frames):
        return self.out(self.rnn(self.front(frames).relu())[0][:, -1])


class EnginePool:
    def __init__(self, model, device, limit):
        self.model = model
        self.device = device
        self.free = []
        self.made = 0
        self.lock = threading.Lock()
        self.slots = threading.Semaphore(limit)

    @contextlib.contextmanager
    def engine(self):
        with self.slots:
            with self.lock:
                engine = self.free.pop() if self.free else None
                if engine is None:
                    engine = Engine(self.model, self.device)
                    self.made += 1
            try:
                yield engine
            finally:
                with self.lock:
                    self.free.append(engine)


def recognize(pool, clip, others):
    with pool.engine() as engine:
        if others is not None:
            others.wait()
        return engine.run(clip)


def main():
    device = sys.argv[1]
    torch.manual_seed(47)
    torch.set_num_threads(1)
    rng = random.Random(47)
    pool = EnginePool(CommandModel(), device, limit=8)
    counts = [0] * 10
    with concurrent.futures.ThreadPoolExecutor(8) as threads:
        for minute in range(240):
            at_once = min(8, 1 + minute // 25)
            together = threading.Barrier(at_once)
            clips = [torch.randn(rng.randint(2000, 6000)) for _ in range(at_once)]
            for command in threads.map(lambda clip: recognize(pool, clip, together), clips):
                counts[command] += 1
    print(f"{sum(counts)} commands, {pool.made} engines")


if __name__ == "__main__":
    main()
