import torch
import torch.nn.functional as F
from torch import nn


class Layer(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, n, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        x = x + self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, d))
        return x + self.mlp(self.norm2(x))


class SpectrogramEncoder(nn.Module):
    def __init__(self, species, mels=128, frames=256, patch=16, dim=1024, depth=20, heads=16):
        super().__init__()
        self.patch = nn.Conv2d(1, dim, patch, stride=patch)
        self.pos = nn.Parameter(torch.zeros(1, (mels // patch) * (frames // patch), dim))
        self.layers = nn.ModuleList(Layer(dim, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, species)

    def forward(self, spec):
        x = self.patch(spec).flatten(2).transpose(1, 2) + self.pos
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x).mean(1))

    def groups(self, per_group):
        """Parameter groups from the output side to the input side."""
        yield [*self.norm.parameters(), *self.head.parameters()]
        layers = list(self.layers)[::-1]
        for i in range(0, len(layers), per_group):
            yield [p for layer in layers[i:i + per_group] for p in layer.parameters()]
