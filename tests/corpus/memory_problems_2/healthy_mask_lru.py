"""Healthy: an encoder for sentences of many lengths with a bounded cache of attention biases.

Why it may look like a leak: memory grows for the first part of the run, while the cache fills with a bias per length.
Why it is none: the cache holds at most MAX_ENTRIES biases and evicts the least recently used one.
"""
import random
from collections import OrderedDict

import torch
from torch import nn

MAX_ENTRIES = 24


class AlibiCache:
    def __init__(self, heads, max_entries=MAX_ENTRIES):
        self.slopes = [2.0 ** (-8.0 * (head + 1) / heads) for head in range(heads)]
        self.max_entries = max_entries
        self.entries = OrderedDict()
        self.hits = 0

    def get(self, length, device):
        key = (length, device)
        if key in self.entries:
            self.hits += 1
            self.entries.move_to_end(key)
            return self.entries[key]
        position = torch.arange(length, device=device, dtype=torch.float32)
        distance = (position[None, :] - position[:, None]).abs()
        slopes = torch.tensor(self.slopes, device=device)[:, None, None]
        bias = -slopes * distance
        self.entries[key] = bias
        while len(self.entries) > self.max_entries:
            self.entries.popitem(last=False)
        return bias


class EncoderLayer(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x, bias):
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        attended = ((q @ k.transpose(-2, -1)) * (width // self.heads) ** -0.5 + bias).softmax(dim=-1) @ v
        x = x + self.out(attended.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.norm2(x))


class SentenceEncoder(nn.Module):
    def __init__(self, vocabulary=5000, width=128, heads=4, layers=2):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(EncoderLayer(width, heads) for _ in range(layers))
        self.biases = AlibiCache(heads)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens):
        x = self.embed(tokens)
        bias = self.biases.get(tokens.shape[1], tokens.device)
        for layer in self.layers:
            x = layer(x, bias)
        return self.head(x)


def bucketed_batches(steps, seed=0, tokens_per_batch=1024, vocabulary=5000):
    """Lengths follow the text: mostly medium ones, all multiples of eight, about as many tokens in each batch."""
    generator = random.Random(seed)
    for _ in range(steps):
        length = min(512, max(64, int(generator.gauss(320, 110)) // 8 * 8))
        yield torch.randint(0, vocabulary, (max(1, tokens_per_batch // length), length))


def main(steps=200):
    torch.manual_seed(0)
    device = torch.device("cuda")
    model = SentenceEncoder().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    for step, tokens in enumerate(bucketed_batches(steps), start=1):
        tokens = tokens.to(device)
        logits = model(tokens)
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        if step % 40 == 0:
            print(f"step {step} loss {loss.item():.4f} cached {len(model.biases.entries)} hits {model.biases.hits} "
                  f"{torch.cuda.memory_allocated() / 2**20:.0f} MiB")
    print("max allocated", torch.cuda.max_memory_allocated() // 2**20, "MiB")


if __name__ == "__main__":
    main()
