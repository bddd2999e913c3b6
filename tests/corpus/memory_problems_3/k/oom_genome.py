"""Chromatin-track regression from long DNA windows (convolution tower + dilated trunk)."""
import sys
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

WINDOW = 131_072
TRACKS = 24
POOLED = WINDOW // 32
BASES = np.frombuffer(b"ACGT", dtype=np.uint8)


class Genome:
    """In-memory chromosomes; N runs are left out of the samples."""

    def __init__(self, seed, length=4_000_000):
        self.rng = np.random.default_rng(seed)
        self.chrom = self.rng.integers(0, 4, size=length, dtype=np.uint8)
        self.signal = self.rng.gamma(0.6, 2.0, size=(TRACKS, length // 32)).astype(np.float32)

    def sample(self, n):
        seqs, targets = [], []
        for _ in range(n):
            s = int(self.rng.integers(0, (len(self.chrom) - WINDOW) // 32)) * 32
            codes = self.chrom[s:s + WINDOW]
            y = self.signal[:, s // 32: s // 32 + POOLED]
            if self.rng.random() < 0.5:
                codes, y = 3 - codes[::-1], y[:, ::-1]
            seqs.append(torch.from_numpy(codes.copy()))
            targets.append(torch.from_numpy(y.copy()))
        return torch.stack(seqs), torch.stack(targets)


def one_hot(codes, device):
    codes = codes.to(device).long()
    return F.one_hot(codes, 4).transpose(1, 2).float()


class Stem(nn.Module):
    def __init__(self, ch):
        super().__init__()
        widths = [ch // 2, ch, ch]
        self.patch = nn.Conv1d(4, ch // 2, 17, stride=8, padding=8)
        self.steps = nn.ModuleList(
            nn.Sequential(nn.Conv1d(a, b, 9, padding=4), nn.BatchNorm1d(b), nn.GELU(), nn.MaxPool1d(2))
            for a, b in zip(widths[:-1], widths[1:]))

    def forward(self, x):
        x = self.patch(x)
        for s in self.steps:
            x = s(x)
        return x


class Dilated(nn.Module):
    def __init__(self, ch, dilation, p=0.1):
        super().__init__()
        self.norm = nn.GroupNorm(8, ch)
        self.conv = nn.Conv1d(ch, 2 * ch, 3, padding=dilation, dilation=dilation)
        self.mix = nn.Conv1d(ch, ch, 1)
        self.p = p

    def forward(self, x):
        y = F.glu(self.conv(F.gelu(self.norm(x))), dim=1)
        return x + F.dropout(self.mix(y), self.p, self.training)


class Trunk(nn.Module):
    def __init__(self, ch, cycles):
        super().__init__()
        self.layers = nn.ModuleList(Dilated(ch, 2 ** (i % 8)) for i in range(8 * cycles))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


class TrackModel(nn.Module):
    def __init__(self, ch=384, cycles=4, recompute=True):
        super().__init__()
        self.stem, self.trunk = Stem(ch), Trunk(ch, cycles)
        self.head = nn.Sequential(nn.Conv1d(ch, ch, 1), nn.GELU(), nn.Conv1d(ch, TRACKS, 1), nn.Softplus())
        self.recompute = recompute

    def forward(self, x):
        x = self.stem(x)
        if self.recompute and self.training:
            x = checkpoint(self.trunk, x, use_reentrant=False)
        else:
            x = self.trunk(x)
        return self.head(x)


def poisson(pred, target):
    return (pred - target * torch.log(pred + 1e-6)).mean()


def run(device, steps=8, batch=4):
    torch.manual_seed(19)
    genome = Genome(seed=19)
    model = TrackModel().to(device)
    opt = torch.optim.AdamW(model.parameters(), lr=4e-4)
    print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.1f}M parameters, window {WINDOW}", flush=True)
    t0 = time.time()
    for step in range(1, steps + 1):
        codes, y = genome.sample(batch)
        loss = poisson(model(one_hot(codes, device)), y.to(device))
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        if step % 2 == 0:
            print(f"step {step} loss {loss.item():.4f} {time.time() - t0:.1f}s", flush=True)


if __name__ == "__main__":
    run(torch.device(sys.argv[1] if len(sys.argv) > 1 else "cuda"))
