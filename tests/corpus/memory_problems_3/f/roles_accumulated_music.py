"""Symbolic music model, four micro batches for each optimizer step."""
import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F

from membook import PeakWatch, gradients, optimizer_tensors, report, storage_bytes


def get_args():
    p = argparse.ArgumentParser()
    p.add_argument("--micro-batch", type=int, default=4)
    p.add_argument("--accumulate", type=int, default=4)
    p.add_argument("--length", type=int, default=192)
    p.add_argument("--steps", type=int, default=20)
    p.add_argument("--pitches", type=int, default=388)
    return p.parse_args()


class EventBlock(nn.Module):
    def __init__(self, dim, heads, length):
        super().__init__()
        self.heads = heads
        self.relative = nn.Parameter(torch.zeros(heads, 2 * length - 1))
        index = torch.arange(length)
        self.register_buffer("offsets", index.view(1, -1) - index.view(-1, 1) + length - 1)
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.ff = nn.Sequential(nn.Linear(dim, 3 * dim), nn.ReLU(), nn.Linear(3 * dim, dim))

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        bias = self.relative[:, self.offsets[:n, :n]]
        scores = q @ k.transpose(-1, -2) * (d // self.heads) ** -0.5 + bias
        causal = self.offsets[:n, :n] > self.offsets.shape[0] - 1
        scores = scores.masked_fill(causal, float("-inf"))
        y = scores.softmax(-1) @ v
        x = x + self.proj(y.transpose(1, 2).reshape(b, n, d))
        return x + self.ff(self.norm2(x))


class MusicModel(nn.Module):
    def __init__(self, events, length, dim=512, depth=6):
        super().__init__()
        self.embed = nn.Embedding(events, dim)
        self.blocks = nn.Sequential(*(EventBlock(dim, 8, length) for _ in range(depth)))
        self.out = nn.Linear(dim, events)

    def forward(self, events):
        return self.out(self.blocks(self.embed(events)))


def micro_loss(model, events):
    logits = model(events[:, :-1])
    return F.cross_entropy(logits.transpose(1, 2), events[:, 1:])


def main():
    args = get_args()
    torch.manual_seed(21)
    model = MusicModel(args.pitches, args.length).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-4, weight_decay=0.1)
    watch = PeakWatch()
    sizes = None
    for step in range(1, args.steps + 1):
        for micro in range(args.accumulate):
            events = torch.randint(0, args.pitches, (args.micro_batch, args.length)).cuda()
            loss = micro_loss(model, events) / args.accumulate
            watch.check(step, f"forward of micro batch {micro + 1}")
            loss.backward()
            watch.check(step, f"backward of micro batch {micro + 1}")
        if step == 15:
            sizes = {
                "parameters": storage_bytes(model.parameters()),
                "buffers": storage_bytes(model.buffers()),
                "gradients": storage_bytes(gradients(model)),
                "optimizer state": storage_bytes(optimizer_tensors(optimizer)),
                "activations": 0,
                "inputs": storage_bytes([events]),
            }
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        watch.check(step, "optimizer step")
        optimizer.zero_grad(set_to_none=True)
    report(watch, sizes)


if __name__ == "__main__":
    main()
