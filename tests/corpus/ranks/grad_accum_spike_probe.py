"""Gradient accumulation with DDP.no_sync(); a rank that sees a loss spike starts to look into its encoder."""
import contextlib
import os

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

ACCUM = 2
OPT_STEPS = 90


class AutoEncoder(nn.Module):
    def __init__(self, d=128, h=512):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(d, h), nn.ReLU())
        self.decoder = nn.Linear(h, d)

    def forward(self, x):
        z = self.encoder(x)
        return self.decoder(z)


class SpikeProbe:
    """After a spike, keeps what the encoder puts out, so that one can see which units blew up."""

    def __init__(self, module, threshold):
        self.module = module
        self.threshold = threshold
        self.handle = None
        self.outputs = []

    def _keep(self, module, args, output):
        self.outputs.append(output.detach())

    def observe(self, step, loss):
        if self.handle is None and loss > self.threshold:
            print(f"rank {dist.get_rank()}: spike at step {step} ({loss:.1f}), probing the encoder", flush=True)
            self.handle = self.module.register_forward_hook(self._keep)


def sample(rank, step, g):
    x = torch.randn(72, 128, generator=g)
    if rank == 1 and step == 41:
        x[3] *= 60.0        # a corrupt record in this shard
    return x


def main():
    rank = int(os.environ["RANK"])
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DDP(AutoEncoder())
    opt = torch.optim.SGD(model.parameters(), lr=0.02)
    probe = SpikeProbe(model.module.encoder, threshold=8.0)
    g = torch.Generator().manual_seed(40 + rank)

    for step in range(OPT_STEPS):
        worst = 0.0
        for micro in range(ACCUM):
            last = micro == ACCUM - 1
            with contextlib.nullcontext() if last else model.no_sync():
                x = sample(rank, step, g)
                loss = (model(x) - x).pow(2).mean()
                (loss / ACCUM).backward()
            worst = max(worst, loss.item())
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        opt.zero_grad()
        probe.observe(step, worst)
        if rank == 0 and step % 30 == 0:
            print(step, round(worst, 4), flush=True)

    dist.destroy_process_group()


main()
