"""Sleep staging from single-channel EEG nights with a deep ConvNeXt-like encoder."""
import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

STAGES = 5
EPOCHS_PER_NIGHT = 960
SAMPLES = 300
BATCH = 12
STEPS = 60


class Recompute(nn.Module):
    """Runs the wrapped module again during backward instead of keeping its activations."""

    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, x):
        if self.training and torch.is_grad_enabled():
            return checkpoint(self.module, x, use_reentrant=False)
        return self.module(x)


class EncoderBlock(nn.Module):
    def __init__(self, width, expansion=4, dropout=0.1):
        super().__init__()
        self.depthwise = nn.Conv1d(width, width, 7, padding=3, groups=width)
        self.norm = nn.LayerNorm(width)
        self.expand = nn.Linear(width, expansion * width)
        self.act = nn.GELU()
        self.contract = nn.Linear(expansion * width, width)
        self.drop = nn.Dropout(dropout)

    def forward(self, x):
        mixed = self.depthwise(x.transpose(1, 2)).transpose(1, 2)
        hidden = self.act(self.expand(self.norm(mixed)))
        return x + self.drop(self.contract(hidden))


class SleepEncoder(nn.Module):
    def __init__(self, width=192, depth=8, memory_efficient=True):
        super().__init__()
        self.embed = nn.Linear(SAMPLES, width)
        self.blocks = nn.ModuleList(EncoderBlock(width) for _ in range(depth))
        self.head = nn.Linear(width, STAGES)
        if memory_efficient:
            self.enable_recompute()

    def enable_recompute(self):
        for block in self.blocks:
            for name, child in list(block.named_children()):
                if isinstance(child, (nn.Linear, nn.Conv1d)):
                    setattr(block, name, Recompute(child))

    def forward(self, nights):
        x = self.embed(nights)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Nights:
    def __init__(self, device, seed=0):
        self.device = device
        self.gen = torch.Generator().manual_seed(seed)

    def batch(self):
        phase = torch.rand(BATCH, EPOCHS_PER_NIGHT, 1, generator=self.gen).to(self.device)
        clock = torch.linspace(0, 30, SAMPLES, device=self.device)
        nights = torch.sin(clock * (1 + phase))
        stages = torch.randint(0, STAGES, (BATCH, EPOCHS_PER_NIGHT), generator=self.gen)
        return nights, stages.to(self.device)


def train(model, nights, steps, lr):
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    model.train()
    running = 0.0
    for step in range(steps):
        signal, stages = nights.batch()
        logits = model(signal)
        loss = F.cross_entropy(logits.flatten(0, 1), stages.flatten(), label_smoothing=0.1)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        schedule.step()
        running += loss.item()
        if step % 20 == 19:
            print(f"step {step + 1:3d}  loss {running / 20:.4f}")
            running = 0.0


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("device", nargs="?", default="cuda")
    parser.add_argument("--depth", type=int, default=8)
    parser.add_argument("--lr", type=float, default=3e-4)
    args = parser.parse_args()
    device = torch.device(args.device)
    torch.manual_seed(0)
    model = SleepEncoder(depth=args.depth).to(device)
    train(model, Nights(device), STEPS, args.lr)


if __name__ == "__main__":
    main()
