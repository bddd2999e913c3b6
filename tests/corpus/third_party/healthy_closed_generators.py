"""A pipeline of generators over simulated video; many clips are left early, and their generator is closed."""

import contextlib
import random
import sys

import torch
from torch.nn import functional as F


def decode(clip, frames, device):
    previous = torch.zeros(3, 36, 48, device=device)
    generator = torch.Generator().manual_seed(clip)
    for _ in range(frames):
        change = torch.randn(3, 36, 48, generator=generator).to(device)
        previous = 0.9 * previous + 0.1 * change
        yield previous


def pairs(frames):
    last = None
    for frame in frames:
        if last is not None:
            yield last, frame
        last = frame


def motion(pair):
    last, frame = pair
    return F.avg_pool2d((frame - last).abs()[None], 4).amax()


def main():
    device = sys.argv[1]
    rng = random.Random(9)
    open_clips = {}
    looked_at = 0
    for clip in range(120):
        frames = rng.randint(6, 16)
        open_clips[clip] = decode(clip, frames, device)
        with contextlib.closing(open_clips[clip]) as source:
            for number, pair in enumerate(pairs(source)):
                motion(pair)
                looked_at += 1
                if number == rng.randint(2, 9):
                    break
        if len(open_clips) > 4:
            open_clips.pop(min(open_clips))
    print(looked_at, "pairs looked at")


if __name__ == "__main__":
    main()
