"""English-Czech translation model, trained from scratch on parliamentary minutes."""
import math
import sys

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

VOCAB, WIDTH, HEADS, DEPTH = 32000, 1024, 16, 10


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.kv, self.out = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x, memory, causal=False):
        split = lambda t: t.unflatten(-1, (HEADS, -1)).transpose(1, 2)
        k, v = self.kv(memory).chunk(2, dim=-1)
        y = F.scaled_dot_product_attention(split(self.q(x)), split(k), split(v), is_causal=causal)
        return self.out(y.transpose(1, 2).flatten(2))


class Layer(nn.Module):
    def __init__(self, cross):
        super().__init__()
        self.self_norm, self.self_attn = nn.LayerNorm(WIDTH), Attention()
        self.cross_norm, self.cross_attn = (nn.LayerNorm(WIDTH), Attention()) if cross else (None, None)
        self.ff = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x, memory=None):
        h = self.self_norm(x)
        x = x + self.self_attn(h, h, causal=memory is not None)
        if memory is not None:
            x = x + self.cross_attn(self.cross_norm(x), memory)
        return x + self.ff(x)


class Translator(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, WIDTH)
        self.position = nn.Embedding(512, WIDTH)
        self.encoder = nn.ModuleList(Layer(cross=False) for _ in range(DEPTH))
        self.decoder = nn.ModuleList(Layer(cross=True) for _ in range(DEPTH))
        self.norm = nn.LayerNorm(WIDTH)

    def tokens(self, ids):
        return self.embed(ids) * math.sqrt(WIDTH) + self.position.weight[:ids.shape[1]]

    def forward(self, source, target):
        memory = self.tokens(source)
        for layer in self.encoder:
            memory = checkpoint(layer, memory, use_reentrant=False)
        x = self.tokens(target)
        for layer in self.decoder:
            x = checkpoint(layer, x, memory, use_reentrant=False)
        return F.linear(self.norm(x), self.embed.weight)


def parameter_groups(model, decay=0.01):
    plain = [p for p in model.parameters() if p.ndim < 2]
    matrices = [p for p in model.parameters() if p.ndim >= 2]
    return [{"params": matrices, "weight_decay": decay}, {"params": plain, "weight_decay": 0.0}]


def sentence_pairs(rng, batch, length):
    while True:
        yield (torch.from_numpy(rng.integers(4, VOCAB, (batch, length))),
               torch.from_numpy(rng.integers(4, VOCAB, (batch, length + 1))))


def train(model, device, updates, accumulate=2, warmup=4000):
    optim = torch.optim.AdamW(parameter_groups(model), lr=1.0, betas=(0.9, 0.98), eps=1e-9)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optim, lambda n: WIDTH ** -0.5 * min((n + 1) ** -0.5, (n + 1) * warmup ** -1.5))
    pairs = sentence_pairs(np.random.default_rng(13), batch=4, length=96)
    for update in range(updates):
        for _ in range(accumulate):
            source, target = (t.to(device) for t in next(pairs))
            logits = model(source, target[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1), target[:, 1:].flatten(), label_smoothing=0.1) / accumulate
            loss.backward()
            del logits
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optim.step()
        schedule.step()
        optim.zero_grad(set_to_none=True)
        print(f"update {update} loss {accumulate * loss.item():.3f}")


def main(device):
    torch.manual_seed(13)
    with torch.device(device):
        model = Translator()
    print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.0f}M parameters")
    train(model, device, updates=4)
    print("done")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "cuda")
