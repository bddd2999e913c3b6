"""Worker threads transcribe clips with scratch spectra on a thread-local stack; the early return for a silent clip forgets to pop its scratch."""

import queue
import random
import sys
import threading

import torch
from torch import nn

local = threading.local()


def push(device, frames):
    if not hasattr(local, "stack"):
        local.stack = []
    scratch = torch.zeros(frames, 80, device=device)  # LEAK
    local.stack.append(scratch)  # LEAK
    return scratch


def pop():
    local.stack.pop()


def transcribe(model, clip, device):
    scratch = push(device, clip["frames"])
    scratch.add_(torch.randn(clip["frames"], 80, device=device))
    if clip["silent"]:
        return 0
    with torch.no_grad():
        tokens = model(scratch).argmax(dim=1)
    pop()
    return len(tokens)


def worker(model, clips, counts, device):
    total = 0
    while (clip := clips.get()) is not None:
        total += transcribe(model, clip, device)
    counts.put(total)


def main():
    device = sys.argv[1]
    torch.manual_seed(37)
    torch.set_num_threads(1)
    rng = random.Random(37)
    model = nn.Sequential(nn.Linear(80, 128), nn.ReLU(), nn.Linear(128, 40)).to(device)
    clips, counts = queue.Queue(maxsize=8), queue.Queue()
    threads = [threading.Thread(target=worker, args=(model, clips, counts, device)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(2500):
        clips.put({"frames": rng.randint(40, 120), "silent": rng.random() < 0.2})
    for _ in threads:
        clips.put(None)
    for thread in threads:
        thread.join()
    print(f"{sum(counts.get() for _ in threads)} tokens")


if __name__ == "__main__":
    main()
