"""Follows the players of a recorded match and writes per-frame occupancy."""
import sys
import time

import numpy as np
import torch

from pitchside.tracker import PlayerTracker


class Recording:
    """Stands in for the decoder: yields frames of a broadcast camera."""

    def __init__(self, frames, size=512, seed=1):
        self.frames = frames
        self.size = size
        self.rng = np.random.default_rng(seed)
        self.field = self.rng.random((3, size + 64, size + 64), dtype=np.float32)

    def __len__(self):
        return self.frames

    def __iter__(self):
        for _ in range(self.frames):
            dy, dx = self.rng.integers(0, 64, size=2)
            yield self.field[:, dy:dy + self.size, dx:dx + self.size]


class OccupancyWriter:
    def __init__(self):
        self.rows = []

    def write(self, index, logits):
        share = (logits > 0).float().mean(dim=(-2, -1))[0].cpu().numpy()
        self.rows.append((index, share))

    def table(self):
        return np.stack([share for _, share in self.rows])


def process(recording, tracker, device):
    session = tracker.open()
    writer = OccupancyWriter()
    started = time.time()
    for index, frame in enumerate(recording):
        image = torch.from_numpy(np.ascontiguousarray(frame))[None].to(device)
        logits = tracker.advance(session, index, image - 0.5)
        writer.write(index, logits)
        if index % 80 == 0:
            print(f"frame {index}/{len(recording)}  {time.time() - started:.1f}s", flush=True)
    return writer.table()


def main():
    device = torch.device(sys.argv[1] if len(sys.argv) > 1 else "cuda")
    torch.manual_seed(4)
    tracker = PlayerTracker().to(device).eval()
    for half in ("first half", "second half"):
        print(half)
        table = process(Recording(480), tracker, device)
        print("occupancy", table.shape, f"{table.mean():.3f}")


if __name__ == "__main__":
    main()
