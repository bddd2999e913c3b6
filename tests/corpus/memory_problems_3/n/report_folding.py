"""Work off a nightly queue of protein chains."""
import random
import sys

import torch

from foldq.service import FoldWorker, Job
from foldq.trunk import RESIDUES


def nightly_queue(rng, count):
    for number in range(count):
        length = rng.randint(320, 520)
        sequence = "".join(rng.choice(RESIDUES) for _ in range(length))
        first = rng.randint(5, length // 2)
        last = length + 3 if number % 4 == 3 else rng.randint(first + 1, length - 1)
        yield Job(f"chain-{number:03d}", sequence, [(first, last)])


def main():
    device = torch.device(sys.argv[1] if len(sys.argv) > 1 else "cuda")
    torch.manual_seed(5)
    rng = random.Random(5)
    worker = FoldWorker(device)
    for number, job in enumerate(nightly_queue(rng, 48), start=1):
        worker.handle(job)
        if number % 8 == 0:
            used = torch.cuda.memory_allocated(device) / 2**20
            print(f"{number} jobs, {len(worker.done)} structures, {used:.0f} MiB", flush=True)
    kinds, lines = worker.summary()
    for kind, count in kinds.items():
        print(f"{count} x {kind}")
    for line in lines:
        print("  " + line)


if __name__ == "__main__":
    main()
