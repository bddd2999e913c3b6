"""Predict promoter activity from DNA; the context grows during training."""
import argparse
import logging

import torch
import torch.nn as nn
import torch.nn.functional as F

LOG = logging.getLogger("promoter")
SCHEDULE = [(0, 4096), (30, 8192), (60, 16384), (80, 32768), (100, 49152), (115, 65536)]
BIN = 8


class Block(nn.Module):
    def __init__(self, dim, heads, dropout):
        super().__init__()
        self.norm1 = nn.LayerNorm(dim)
        self.attn = nn.MultiheadAttention(dim, heads, batch_first=True)
        self.norm2 = nn.LayerNorm(dim)
        self.ffn = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Dropout(dropout), nn.Linear(4 * dim, dim))

    def forward(self, x):
        y = self.norm1(x)
        y, _ = self.attn(y, y, y)
        x = x + y
        return x + self.ffn(self.norm2(x))


class PromoterNet(nn.Module):
    def __init__(self, dim=192, heads=6, layers=6, tracks=12, dropout=0.1, max_bins=8192):
        super().__init__()
        self.stem = nn.Linear(4 * BIN, dim)
        self.position = nn.Parameter(torch.randn(max_bins, dim) * 0.02)
        self.blocks = nn.ModuleList(Block(dim, heads, dropout) for _ in range(layers))
        self.head = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, tracks), nn.Softplus())

    def forward(self, dna):
        b, length, _ = dna.shape
        x = self.stem(dna.reshape(b, length // BIN, 4 * BIN))
        x = x + self.position[: x.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class GenomeWindows:
    """Random windows around transcription start sites with coverage tracks per bin."""

    def __init__(self, batch_size, tracks=12, seed=0):
        self.batch_size, self.tracks = batch_size, tracks
        self.gen = torch.Generator().manual_seed(seed)

    def draw(self, length):
        bases = torch.randint(0, 4, (self.batch_size, length), generator=self.gen)
        dna = F.one_hot(bases, 4).float()
        coverage = torch.rand(self.batch_size, length // BIN, self.tracks, generator=self.gen)
        return dna, coverage


def window_length(step):
    return max((s, length) for s, length in SCHEDULE if s <= step)[1]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=130)
    ap.add_argument("--batch-size", type=int, default=1)
    ap.add_argument("--lr", type=float, default=3e-4)
    args = ap.parse_args()
    logging.basicConfig(level=logging.INFO)
    torch.manual_seed(0)

    net = PromoterNet().cuda()
    optimizer = torch.optim.AdamW(net.parameters(), lr=args.lr)
    windows = GenomeWindows(args.batch_size)
    for step in range(args.steps):
        dna, coverage = windows.draw(window_length(step))
        dna, coverage = dna.cuda(), coverage.cuda()
        rate = net(dna)
        loss = F.poisson_nll_loss(rate, coverage, log_input=False)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 0.2)
        optimizer.step()
        if step % 10 == 0:
            LOG.info("step %d window %d loss %.4f", step, dna.shape[1], loss.item())


if __name__ == "__main__":
    main()
