"""A studio that samples images and keeps a few intermediate frames of each job, so that the client can watch.

The frames are dropped when a job reaches its last step; a job whose client stops it early leaves them on the board.
"""

import random
import sys

import torch
from torch import nn


class Denoiser(nn.Module):
    def __init__(self, channels=12):
        super().__init__()
        self.inward = nn.Conv2d(3, channels, 3, padding=1)
        self.middle = nn.Conv2d(channels, channels, 3, padding=1)
        self.outward = nn.Conv2d(channels, 3, 3, padding=1)

    def forward(self, x):
        hidden = torch.nn.functional.silu(self.inward(x))
        hidden = hidden + torch.nn.functional.silu(self.middle(hidden))
        return self.outward(hidden)


class PreviewBoard:
    def __init__(self, every):
        self.every = every
        self.frames = {}

    def show(self, job, step, x):
        if step % self.every == 0:
            frame = x[0].clamp(-1, 1).add(1).div(2)  # LEAK
            self.frames.setdefault(job, []).append(frame)  # LEAK

    def close(self, job):
        return self.frames.pop(job, [])


class Studio:
    def __init__(self, device, steps=12):
        self.device = device
        self.steps = steps
        self.model = Denoiser().to(device)
        self.board = PreviewBoard(every=3)
        # A noise level for each step, from loud to quiet.
        self.sigmas = torch.linspace(1.0, 0.02, steps).tolist()

    @torch.no_grad()
    def sample(self, job, size, stop_at):
        x = torch.randn(1, 3, size, size, device=self.device)
        for step, sigma in enumerate(self.sigmas):
            if step == stop_at:
                return x
            x = x - sigma * self.model(x) + 0.1 * sigma * torch.randn_like(x)
            self.board.show(job, step, x)  # LEAK
        self.board.close(job)
        return x


def main():
    torch.manual_seed(21)
    torch.set_num_threads(1)
    rng = random.Random(21)
    studio = Studio(sys.argv[1])
    stopped = 0
    for job in range(210):
        stop_at = rng.randint(4, 10) if rng.random() < 0.2 else None
        stopped += stop_at is not None
        studio.sample(job, rng.choice([24, 32, 40]), stop_at)
    print(f"210 jobs, {stopped} stopped early")


if __name__ == "__main__":
    main()
