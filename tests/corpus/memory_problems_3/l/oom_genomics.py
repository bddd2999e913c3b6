"""Predict chromatin tracks from 131 kb DNA windows."""
import sys
import time

import torch
import torch.nn as nn

from enhancernet.blocks import ConvTower, MixerBlock, TrackHead, poisson_multinomial
from enhancernet.data import GenomeWindows

WINDOW = 131_072
BIN = 32
TRACKS = 96


class ChromatinNet(nn.Module):
    def __init__(self, dim=256, depth=6, heads=8, dropout=0.1):
        super().__init__()
        self.tower = ConvTower([64, 96, 128, 192, dim])
        self.position = nn.Parameter(torch.zeros(1, WINDOW // BIN, dim))
        self.blocks = nn.ModuleList(MixerBlock(dim, heads, dropout) for _ in range(depth))
        self.head = TrackHead(dim, TRACKS)

    def forward(self, dna):
        x = self.tower(dna).transpose(1, 2) + self.position
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def parameter_groups(model, weight_decay):
    decay, plain = [], []
    for name, p in model.named_parameters():
        (plain if p.ndim < 2 or name == "position" else decay).append(p)
    return [{"params": decay, "weight_decay": weight_decay}, {"params": plain, "weight_decay": 0.0}]


def warmup(step, total=400):
    return min(1.0, (step + 1) / total)


def run(device, steps=6, batch_size=2):
    torch.manual_seed(5)
    windows = GenomeWindows(WINDOW, WINDOW // BIN, TRACKS, seed=5)
    model = ChromatinNet().to(device)
    optimizer = torch.optim.AdamW(parameter_groups(model, 0.01), lr=5e-4)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, warmup)
    n_params = sum(p.numel() for p in model.parameters())
    print(f"{n_params / 1e6:.2f} M parameters, {WINDOW // BIN} bins per window", flush=True)
    model.train()
    for step in range(steps):
        start = time.time()
        dna, coverage = windows.batch(batch_size)
        if step % 2:
            dna, coverage = windows.reverse_complement(dna, coverage)
        pred = model(dna.to(device))
        loss = poisson_multinomial(pred, coverage.to(device))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.2)
        optimizer.step()
        scheduler.step()
        print(f"step {step}: loss {loss.item():.4f} lr {scheduler.get_last_lr()[0]:.2e} {time.time() - start:.1f}s", flush=True)


if __name__ == "__main__":
    run(torch.device(sys.argv[1] if len(sys.argv) > 1 else "cuda"))
