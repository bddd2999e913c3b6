"""Train a video denoiser; a background thread writes previews to disk."""
import queue
import tempfile
import threading
from pathlib import Path

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

PATCH, CLIP, BATCH, STEPS = 80, 5, 6, 180


class PreviewWriter(threading.Thread):
    """Saves the newest frame whenever it is asked to, so that training never waits for the disk."""

    def __init__(self, folder):
        super().__init__(daemon=True)
        self.folder = Path(folder)
        self.frames = queue.Queue()
        self.wanted = threading.Semaphore(0)
        self.stop = False
        self.written = 0

    def offer(self, step, frame):
        self.frames.put((step, frame))

    def request(self):
        self.wanted.release()

    def run(self):
        while True:
            self.wanted.acquire()
            if self.stop:
                return
            step, frame = self.frames.get()
            image = (frame.clamp(0, 1) * 255).byte().cpu().numpy()
            np.save(self.folder / f"step{step:05d}.npy", image)
            self.written += 1
            self.frames.task_done()

    def close(self):
        self.stop = True
        self.wanted.release()
        self.join()


class Denoiser(nn.Module):
    def __init__(self, width=24):
        super().__init__()
        self.enter = nn.Conv2d(3 * CLIP, width, 3, padding=1)
        self.body = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1) for _ in range(4))
        self.leave = nn.Conv2d(width, 3, 3, padding=1)

    def forward(self, clip):
        x = self.enter(clip.flatten(1, 2))
        for conv in self.body:
            x = x + F.leaky_relu(conv(x), 0.1)
        return clip[:, CLIP // 2] + self.leave(x)


class NoisyClips:
    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)
        self.video = self.rng.random((40, 3, 160, 160), dtype=np.float32)

    def next(self):
        clips = np.empty((BATCH, CLIP, 3, PATCH, PATCH), np.float32)
        for i in range(BATCH):
            t = self.rng.integers(0, 40 - CLIP)
            r, c = self.rng.integers(0, 160 - PATCH, 2)
            clips[i] = self.video[t:t + CLIP, :, r:r + PATCH, c:c + PATCH]
        clean = torch.from_numpy(clips)
        return clean, clean + 0.1 * torch.randn_like(clean)


def charbonnier(a, b, eps=1e-3):
    return ((a - b) ** 2 + eps ** 2).sqrt().mean()


def train(folder):
    torch.manual_seed(3)
    data = NoisyClips(seed=3)
    model = Denoiser().cuda()
    opt = torch.optim.Adam(model.parameters(), lr=2e-4)
    writer = PreviewWriter(folder)
    writer.start()
    for step in range(1, STEPS + 1):
        clean, noisy = data.next()
        clean, noisy = clean.cuda(), noisy.cuda()
        restored = model(noisy)
        loss = charbonnier(restored, clean[:, CLIP // 2])
        opt.zero_grad()
        loss.backward()
        opt.step()
        writer.offer(step, restored.detach())
        if step % 30 == 0:
            writer.request()
            print(f"{step}/{STEPS} loss {loss.item():.4f}")
    writer.close()
    return writer.written


def main():
    with tempfile.TemporaryDirectory() as folder:
        written = train(folder)
    print(f"{written} previews")


if __name__ == "__main__":
    main()
