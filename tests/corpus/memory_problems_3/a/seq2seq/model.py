import torch
import torch.nn.functional as F
from torch import nn


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.q, self.kv, self.out = nn.Linear(width, width), nn.Linear(width, 2 * width), nn.Linear(width, width)

    def forward(self, x, memory, causal=False):
        batch, length, width = x.shape
        q = self.q(x).view(batch, length, self.heads, -1).transpose(1, 2)
        k, v = self.kv(memory).view(batch, memory.shape[1], 2, self.heads, -1).permute(2, 0, 3, 1, 4)
        x = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
        return self.out(x.transpose(1, 2).reshape(batch, length, width))


class Layer(nn.Module):
    def __init__(self, width, heads, cross):
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3 if cross else 2))
        self.own = Attention(width, heads)
        self.cross = Attention(width, heads) if cross else None
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.ReLU(), nn.Linear(4 * width, width))

    def forward(self, x, memory=None):
        normed = self.norms[0](x)
        x = x + self.own(normed, normed, causal=self.cross is not None)
        if self.cross is not None:
            x = x + self.cross(self.norms[1](x), memory)
        return x + self.feed(self.norms[-1](x))


class Translator(nn.Module):
    """One table of word vectors for source, target and the output layer."""

    def __init__(self, vocabulary=20000, width=512, heads=8, layers=4, longest=512):
        super().__init__()
        self.source = nn.Embedding(vocabulary, width)
        self.target = nn.Embedding(vocabulary, width)
        self.output = nn.Linear(width, vocabulary, bias=False)
        self.target.weight = self.source.weight
        self.output.weight = self.source.weight
        self.encoder = nn.ModuleList(Layer(width, heads, cross=False) for _ in range(layers))
        self.decoder = nn.ModuleList(Layer(width, heads, cross=True) for _ in range(layers))
        self.register_buffer("positions", torch.randn(longest, width) * 0.02)

    def forward(self, source, target):
        memory = self.source(source) + self.positions[: source.shape[1]]
        for layer in self.encoder:
            memory = layer(memory)
        x = self.target(target) + self.positions[: target.shape[1]]
        for layer in self.decoder:
            x = layer(x, memory)
        return self.output(x)
