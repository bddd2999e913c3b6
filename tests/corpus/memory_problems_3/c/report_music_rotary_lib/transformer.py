import torch
from torch import nn
from torch.nn import functional as F

from .rotary import RotaryEmbedding


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.rotary = RotaryEmbedding(width // heads)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        q, k = self.rotary.rotate(q), self.rotary.rotate(k)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.norm2(x))


class MusicTransformer(nn.Module):
    """Predicts the next event of a performance (note on and off, velocity, time shift)."""

    def __init__(self, events=388, width=256, heads=2, depth=6):
        super().__init__()
        self.embedding = nn.Embedding(events, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, events, bias=False)

    def forward(self, events):
        x = self.embedding(events)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))
