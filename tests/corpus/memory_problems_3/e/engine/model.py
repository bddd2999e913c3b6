"""Decoder-only transformer with grouped-query attention that reads and writes the static cache."""
import torch
import torch.nn.functional as F
from torch import nn


class Attention(nn.Module):
    def __init__(self, dim, heads, kv_heads):
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = heads, kv_heads, dim // heads
        self.wq = nn.Linear(dim, dim, bias=False)
        self.wkv = nn.Linear(dim, 2 * kv_heads * self.head_dim, bias=False)
        self.wo = nn.Linear(dim, dim, bias=False)

    def forward(self, x, cache, slot, start):
        t = x.shape[0]
        q = self.wq(x).view(t, self.heads, self.head_dim).transpose(0, 1)
        k, v = self.wkv(x).view(t, 2, self.kv_heads, self.head_dim).permute(1, 2, 0, 3)
        keys, values = cache.write(slot, start, k, v)
        out = F.scaled_dot_product_attention(q.unsqueeze(0), keys.to(x.dtype), values.to(x.dtype),
                                             is_causal=start == 0, enable_gqa=True)
        return self.wo(out.squeeze(0).transpose(0, 1).reshape(t, -1))


class Decoder(nn.Module):
    def __init__(self, vocab, dim, layers, heads, kv_heads, ffn):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.attn = nn.ModuleList(Attention(dim, heads, kv_heads) for _ in range(layers))
        self.ffn = nn.ModuleList(
            nn.Sequential(nn.Linear(dim, ffn, bias=False), nn.SiLU(), nn.Linear(ffn, dim, bias=False))
            for _ in range(layers))
        self.norms = nn.ModuleList(nn.RMSNorm(dim) for _ in range(2 * layers + 1))

    def forward(self, ids, cache, slot):
        start = cache.lengths[slot]
        x = self.embed(ids)
        for i, (attn, ffn) in enumerate(zip(self.attn, self.ffn)):
            x = x + attn(self.norms[2 * i](x), cache.layers[i], slot, start)
            x = x + ffn(self.norms[2 * i + 1](x))
        cache.lengths[slot] = start + ids.shape[0]
        return F.linear(self.norms[-1](x[-1:]), self.embed.weight)
