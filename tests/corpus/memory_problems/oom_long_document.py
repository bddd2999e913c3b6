"""Classifies documents of very different length with a transformer that has its own attention.

True cause: the attention scores have heads x n x n entries; for the document of 16384 tokens one such tensor has 8 GiB,
while the documents of up to 4096 tokens went through easily.
The line: `scores = q @ k.transpose(-2, -1) / math.sqrt(self.head_dim)`.
Cure: F.scaled_dot_product_attention (which never builds the scores), or attention in windows, or cut long documents.
"""

import math

import torch
from torch import nn


class SelfAttention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.head_dim = dim // heads
        self.q = nn.Linear(dim, dim)
        self.k = nn.Linear(dim, dim)
        self.v = nn.Linear(dim, dim)
        self.o = nn.Linear(dim, dim)

    def split(self, x):
        return x.view(x.shape[0], x.shape[1], self.heads, self.head_dim).transpose(1, 2)

    def forward(self, x):
        q, k, v = self.split(self.q(x)), self.split(self.k(x)), self.split(self.v(x))
        scores = q @ k.transpose(-2, -1) / math.sqrt(self.head_dim)  # CAUSE
        weights = scores.softmax(dim=-1)
        out = (weights @ v).transpose(1, 2).flatten(2)
        return self.o(out)


class Layer(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attention = SelfAttention(dim, heads)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class DocumentClassifier(nn.Module):
    def __init__(self, vocab=30000, dim=256, heads=8, layers=4, classes=12):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.layers = nn.Sequential(*[Layer(dim, heads) for _ in range(layers)])
        self.classify = nn.Linear(dim, classes)

    def forward(self, tokens):
        return self.classify(self.layers(self.embed(tokens)).mean(1))


@torch.inference_mode()
def main():
    torch.manual_seed(9)
    model = DocumentClassifier().to("cuda").eval()
    lengths = [350, 1200, 980, 4096, 2210, 640, 3300, 16384, 1500]
    for number, length in enumerate(lengths):
        tokens = torch.randint(0, 30000, (1, length)).to("cuda")
        label = model(tokens).argmax(-1).item()
        print(f"document {number} ({length} tokens): class {label}", flush=True)


if __name__ == "__main__":
    main()
