import torch
import torch.nn.functional as F
from torch import nn


class Attention(nn.Module):
    def __init__(self, dim, heads, kv_heads):
        super().__init__()
        self.heads, self.kv_heads, self.size = heads, kv_heads, dim // heads
        self.q = nn.Linear(dim, dim, bias=False)
        self.kv = nn.Linear(dim, 2 * kv_heads * self.size, bias=False)
        self.o = nn.Linear(dim, dim, bias=False)

    def forward(self, x, past):
        b, t, d = x.shape
        q = self.q(x).view(b, t, self.heads, self.size).transpose(1, 2)
        k, v = self.kv(x).view(b, t, 2, self.kv_heads, self.size).permute(2, 0, 3, 1, 4)
        if past is not None:
            k, v = torch.cat([past[0], k], 2), torch.cat([past[1], v], 2)
        groups = self.heads // self.kv_heads
        y = F.scaled_dot_product_attention(
            q, k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1), is_causal=past is None)
        return self.o(y.transpose(1, 2).reshape(b, t, d)), (k, v)


class Layer(nn.Module):
    def __init__(self, dim, heads, kv_heads):
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(dim), nn.RMSNorm(dim)
        self.attention = Attention(dim, heads, kv_heads)
        self.gate = nn.Linear(dim, 3 * dim, bias=False)
        self.up = nn.Linear(dim, 3 * dim, bias=False)
        self.down = nn.Linear(3 * dim, dim, bias=False)

    def forward(self, x, past):
        y, present = self.attention(self.norm1(x), past)
        x = x + y
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y)), present


class MinutesLM(nn.Module):
    def __init__(self, vocab=128256, dim=1024, layers=12, heads=16, kv_heads=4):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.layers = nn.ModuleList(Layer(dim, heads, kv_heads) for _ in range(layers))
        self.norm = nn.RMSNorm(dim)
        self.head = nn.Linear(dim, vocab, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens, cache=None):
        x = self.embed(tokens)
        presents = []
        for i, layer in enumerate(self.layers):
            x, present = layer(x, cache[i] if cache else None)
            presents.append(present)
        logits = self.head(self.norm(x)).float()
        return logits, presents
