"""Compare a sweep of keyword-spotting candidates on the same held-out clips (half precision inference)."""
import sys
import time

import numpy as np
import torch
from torch import nn

SAMPLE_RATE = 16000
KEYWORDS = 35
CANDIDATES = [(width, seed) for width in (640, 704, 768) for seed in range(5)]


class Spectrogram(nn.Module):
    def __init__(self, n_fft=512, hop=160, n_mels=80):
        super().__init__()
        self.n_fft, self.hop = n_fft, hop
        self.register_buffer("window", torch.hann_window(n_fft))
        self.register_buffer("filters", self._triangles(n_fft // 2 + 1, n_mels))

    @staticmethod
    def _triangles(n_bins, n_mels):
        top = 2595 * np.log10(1 + SAMPLE_RATE / 2 / 700)
        hz = 700 * (10 ** (np.linspace(0, top, n_mels + 2) / 2595) - 1)
        bins = hz / (SAMPLE_RATE / 2) * (n_bins - 1)
        grid = np.arange(n_bins)[:, None]
        rise = (grid - bins[:-2]) / np.maximum(bins[1:-1] - bins[:-2], 1e-3)
        fall = (bins[2:] - grid) / np.maximum(bins[2:] - bins[1:-1], 1e-3)
        return torch.tensor(np.clip(np.minimum(rise, fall), 0, None), dtype=torch.float32)

    def forward(self, clips):
        spec = torch.stft(clips, self.n_fft, self.hop, window=self.window, return_complex=True)
        power = spec.abs().pow(2).transpose(1, 2)
        return torch.log1p(power @ self.filters)


class MixerLayer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.time = nn.Conv1d(width, width, 9, padding=4, groups=width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x):
        h = self.time(self.norm(x).transpose(1, 2)).transpose(1, 2)
        return x + self.down(torch.nn.functional.silu(self.up(h)))


class KeywordNet(nn.Module):
    def __init__(self, width, depth=6):
        super().__init__()
        self.spectrogram = Spectrogram()
        self.enter = nn.Linear(80, width)
        self.layers = nn.ModuleList(MixerLayer(width) for _ in range(depth))
        self.classify = nn.Linear(width, KEYWORDS)

    def forward(self, clips):
        x = self.enter(self.spectrogram(clips))
        for layer in self.layers:
            x = layer(x)
        return self.classify(x.mean(dim=1))


class HeldOutClips:
    def __init__(self, n, batch, seed=8):
        rng = np.random.default_rng(seed)
        self.audio = rng.standard_normal((n, SAMPLE_RATE)).astype(np.float32) * 0.1
        self.labels = rng.integers(0, KEYWORDS, n)
        self.batch = batch

    def __iter__(self):
        for i in range(0, len(self.labels), self.batch):
            yield (torch.from_numpy(self.audio[i:i + self.batch]),
                   torch.from_numpy(self.labels[i:i + self.batch]))


def restore_candidate(width, seed, device):
    torch.manual_seed(seed)
    with device:
        model = KeywordNet(width)
    return model.eval()


def accuracy(model, clips, device):
    hits = torch.zeros((), device=device)
    total = 0
    for audio, labels in clips:
        scores = model(audio.to(device))
        hits += (scores.argmax(dim=1) == labels.to(device)).sum()
        total += labels.numel()
    return (hits / total).cpu()


def sweep(clips, device):
    table = {}
    with torch.no_grad(), torch.autocast(device.type, dtype=torch.float16):
        for number, (width, seed) in enumerate(CANDIDATES):
            began = time.time()
            model = restore_candidate(width, seed, device)
            table[width, seed] = float(accuracy(model, clips, device))
            size = sum(p.numel() for p in model.parameters()) / 1e6
            print(f"candidate {number + 1:2d}/{len(CANDIDATES)} width {width} ({size:.1f} M) "
                  f"{time.time() - began:.2f} s")
            del model
    return table


def main():
    device = torch.device(sys.argv[1])
    clips = HeldOutClips(n=128, batch=32)
    table = sweep(clips, device)
    print("evaluated", len(table), "candidates on", len(clips.labels), "clips")


if __name__ == "__main__":
    main()
