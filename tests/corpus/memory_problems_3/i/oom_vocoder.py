"""Serve a neural vocoder with a CUDA graph for each mel-length bucket."""
import sys
import time

import numpy as np
import torch
from torch import nn
import torch.nn.functional as F

BUCKETS = [128, 192, 256, 320, 384, 448, 512, 640, 768, 896, 1024]
BATCH = 8
MELS = 80


class ResStack(nn.Module):
    def __init__(self, channels, kernel=7, dilations=(1, 3, 5)):
        super().__init__()
        self.convs = nn.ModuleList(
            nn.Conv1d(channels, channels, kernel, dilation=d, padding=d * (kernel - 1) // 2) for d in dilations
        )

    def forward(self, x):
        for conv in self.convs:
            x = x + conv(F.leaky_relu(x, 0.1))
        return x


class Vocoder(nn.Module):
    """Mel spectrogram to waveform, 256 samples for a frame."""

    def __init__(self, channels=256, rates=(8, 8, 2, 2)):
        super().__init__()
        self.pre = nn.Conv1d(MELS, channels, 7, padding=3)
        self.ups, self.stacks = nn.ModuleList(), nn.ModuleList()
        for rate in rates:
            self.ups.append(nn.ConvTranspose1d(channels, channels // 2, 2 * rate, stride=rate, padding=rate // 2))
            channels //= 2
            self.stacks.append(ResStack(channels))
        self.post = nn.Conv1d(channels, 1, 7, padding=3)

    def forward(self, mel):
        x = self.pre(mel)
        for up, stack in zip(self.ups, self.stacks):
            x = stack(up(F.leaky_relu(x, 0.1)))
        return torch.tanh(self.post(F.leaky_relu(x, 0.1))).squeeze(1)


class GraphedBucket:
    def __init__(self, model, frames, device):
        self.frames = frames
        self.mel = torch.zeros(BATCH, MELS, frames, device=device)
        self.graph = torch.cuda.CUDAGraph()
        self._warm_up(model)
        with torch.cuda.graph(self.graph):
            self.wave = model(self.mel)

    def _warm_up(self, model, rounds=2):
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(rounds):
                model(self.mel)
        torch.cuda.current_stream().wait_stream(side)

    def __call__(self, mels):
        self.mel.zero_()
        for row, mel in enumerate(mels):
            self.mel[row, :, : mel.shape[1]].copy_(mel)
        self.graph.replay()
        return [self.wave[row, : 256 * mel.shape[1]].cpu() for row, mel in enumerate(mels)]


class VocoderServer:
    def __init__(self, device):
        self.device = device
        self.model = Vocoder().to(device).eval().requires_grad_(False)
        self.buckets = []
        for frames in BUCKETS:
            self.buckets.append(GraphedBucket(self.model, frames, device))
            print(f"captured {BATCH}x{frames}", flush=True)

    def bucket_for(self, frames):
        return next(b for b in self.buckets if b.frames >= frames)

    @torch.inference_mode()
    def synthesize(self, mels):
        bucket = self.bucket_for(max(m.shape[1] for m in mels))
        return bucket([m.to(self.device) for m in mels])


def requests(count, seed=4):
    rng = np.random.default_rng(seed)
    for _ in range(count):
        size = int(rng.integers(1, BATCH + 1))
        yield [torch.zeros(MELS, int(n)) for n in rng.integers(60, 1000, size)]


def main(device):
    torch.manual_seed(0)
    server = VocoderServer(device)
    start, seconds = time.time(), 0.0
    for mels in requests(20):
        waves = server.synthesize(mels)
        seconds += sum(w.numel() for w in waves) / 22050
    print(f"{seconds:.0f} s of speech in {time.time() - start:.1f} s")


if __name__ == "__main__":
    main(torch.device(sys.argv[1]))
