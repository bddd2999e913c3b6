"""Streaming acoustic model with cached left context."""
import torch
from torch import nn
from torch.nn import functional as F


class ConformerLite(nn.Module):
    """Self-attention over a limited left context plus a causal convolution."""

    def __init__(self, dim=512, heads=8, kernel=15):
        super().__init__()
        self.heads, self.kernel = heads, kernel
        self.norm1, self.norm2, self.norm3 = nn.LayerNorm(dim), nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.conv = nn.Conv1d(dim, dim, kernel, groups=dim)
        self.ffn = nn.Sequential(nn.Linear(dim, 4 * dim), nn.SiLU(), nn.Linear(4 * dim, dim))

    def forward(self, x, state, context):
        b, t, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).chunk(3, dim=-1)
        k, v = torch.cat([state["k"], k], dim=1)[:, -context:], torch.cat([state["v"], v], dim=1)[:, -context:]
        split = lambda z: z.view(b, -1, self.heads, d // self.heads).transpose(1, 2)
        x = x + self.proj(F.scaled_dot_product_attention(split(q), split(k), split(v)).transpose(1, 2).reshape(b, t, d))
        h = torch.cat([state["conv"], self.norm2(x)], dim=1)
        x = x + self.conv(h.transpose(1, 2)).transpose(1, 2)
        return x + self.ffn(self.norm3(x)), {"k": k.clone(), "v": v.clone(), "conv": h[:, -(self.kernel - 1):].clone()}


class Recogniser(nn.Module):
    def __init__(self, mel=80, dim=512, layers=8, tokens=1024, context=512):
        super().__init__()
        self.context, self.dim = context, dim
        self.inp = nn.Linear(mel, dim)
        self.layers = nn.ModuleList(ConformerLite(dim) for _ in range(layers))
        self.out = nn.Linear(dim, tokens)

    def start_state(self, device):
        empty = lambda n: torch.zeros(1, n, self.dim, device=device)
        return [{"k": empty(0), "v": empty(0), "conv": empty(layer.kernel - 1)} for layer in self.layers]

    def forward(self, chunk, state):
        x, following = self.inp(chunk), []
        for layer, s in zip(self.layers, state):
            x, s = layer(x, s, self.context)
            following.append(s)
        return self.out(x).log_softmax(-1), following
