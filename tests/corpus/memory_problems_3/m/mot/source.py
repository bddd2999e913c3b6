import numpy as np
import pandas as pd
import torch


class FrameSource:
    """A 4K stadium camera together with the detector's boxes from the previous stage."""

    def __init__(self, frames, players, seed):
        rng = np.random.default_rng(seed)
        self.height, self.width = 2160, 3840
        self.base = rng.integers(0, 255, (self.height, self.width, 3), dtype=np.uint8)
        self.frames = frames
        rows = []
        x = rng.uniform(200, 3500, players)
        y = rng.uniform(200, 1800, players)
        for f in range(frames):
            x = np.clip(x + rng.normal(0, 6, players), 0, self.width - 120)
            y = np.clip(y + rng.normal(0, 4, players), 0, self.height - 260)
            for p in np.flatnonzero(rng.random(players) < 0.8):
                rows.append((f, p, int(x[p]), int(y[p]), 96, 224, rng.uniform(0.4, 1.0)))
        self.boxes = pd.DataFrame(rows, columns=["frame", "player", "x", "y", "w", "h", "score"])

    def __iter__(self):
        grouped = dict(tuple(self.boxes.groupby("frame")))
        for f in range(self.frames):
            yield f, torch.from_numpy(self.base), grouped[f]
