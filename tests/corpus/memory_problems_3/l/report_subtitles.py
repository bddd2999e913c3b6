# Causal language model over subtitle text. Runs a warm-up stage, writes a checkpoint, then continues from it.
import copy
import math
import os
import sys
import tempfile

import numpy as np
import torch
from torch import nn
import torch.nn.functional as F

vocab_size = 16000
context = 128
width = 512
layers = 6
heads = 8
batch_size = 8
warmup_steps = 4
total_steps = 16
ema_decay = 0.999


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.proj = nn.Linear(width, width, bias=False)
        self.ln2 = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = self.qkv(self.ln1(x)).view(b, t, 3, heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(b, t, width))
        return x + self.down(F.gelu(self.up(self.ln2(x))))


class SubtitleLM(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(vocab_size, width)
        self.places = nn.Embedding(context, width)
        self.blocks = nn.Sequential(*[Block() for _ in range(layers)])
        self.ln = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocab_size, bias=False)

    def forward(self, ids):
        pos = torch.arange(ids.shape[1], device=ids.device)
        x = self.blocks(self.tokens(ids) + self.places(pos))
        return self.head(self.ln(x))


class Corpus:
    def __init__(self, seed):
        rng = np.random.default_rng(seed)
        self.ids = rng.zipf(1.3, 400_000).clip(max=vocab_size - 1).astype(np.int64)
        self.rng = rng

    def batch(self, device):
        at = self.rng.integers(0, len(self.ids) - context - 1, batch_size)
        rows = torch.from_numpy(np.stack([self.ids[i:i + context + 1] for i in at]))
        rows = rows.to(device)
        return rows[:, :-1], rows[:, 1:]


def learning_rate(step):
    return 6e-4 * 0.5 * (1 + math.cos(math.pi * step / total_steps))


@torch.no_grad()
def update_ema(ema, model):
    for slow, fast in zip(ema.parameters(), model.parameters()):
        slow.lerp_(fast, 1 - ema_decay)


def train_steps(model, ema, optimizer, corpus, device, first, last):
    for step in range(first, last):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step)
        ids, target = corpus.batch(device)
        logits = model(ids)
        loss = F.cross_entropy(logits.view(-1, vocab_size), target.reshape(-1))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        update_ema(ema, model)
        if step % 4 == 0:
            print(f"step {step}/{total_steps} lr {learning_rate(step):.2e}")


def build(device):
    model = SubtitleLM().to(device)
    ema = copy.deepcopy(model).requires_grad_(False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-4, fused=True)
    return model, ema, optimizer


def first_stage(path, device):
    model, ema, optimizer = build(device)
    train_steps(model, ema, optimizer, Corpus(1), device, 0, warmup_steps)
    torch.save({"model": model.state_dict(), "ema": ema.state_dict(), "optimizer": optimizer.state_dict(),
                "step": warmup_steps, "best": 9.1}, path)
    print("checkpoint written at step", warmup_steps)


def second_stage(path, device):
    model, ema, optimizer = build(device)
    saved = torch.load(path, map_location=device)
    model.load_state_dict(saved["model"])
    ema.load_state_dict(saved["ema"])
    optimizer.load_state_dict(saved["optimizer"])
    print(f"resumed at step {saved['step']}, best validation loss so far {saved['best']}")
    train_steps(model, ema, optimizer, Corpus(2), device, saved["step"], total_steps)
    print("finished; previous best was", saved["best"])


if __name__ == "__main__":
    device = torch.device(sys.argv[1])
    torch.manual_seed(1337)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "last.pt")
        first_stage(path, device)
        second_stage(path, device)
