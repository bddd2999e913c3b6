"""Causal latent generator with key/value caches, one latent frame per call."""
import torch
import torch.nn as nn
import torch.nn.functional as F


class CausalBlock(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x, cache):
        batch, steps, dim = x.shape
        qkv = self.qkv(self.norm1(x)).view(batch, steps, 3, self.heads, dim // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        if cache is not None:
            k, v = torch.cat([cache[0], k], dim=2), torch.cat([cache[1], v], dim=2)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=cache is None)
        x = x + self.proj(y.transpose(1, 2).reshape(batch, steps, dim))
        return x + self.mlp(self.norm2(x)), (k, v)


class LatentGenerator(nn.Module):
    def __init__(self, latent=64, dim=512, heads=8, depth=8, pitches=128):
        super().__init__()
        self.lead = nn.Embedding(pitches, dim)
        self.inp = nn.Linear(latent, dim)
        self.blocks = nn.ModuleList(CausalBlock(dim, heads) for _ in range(depth))
        self.norm, self.out = nn.LayerNorm(dim), nn.Linear(dim, latent)
        self.start = nn.Parameter(torch.zeros(1, 1, latent))

    def _run(self, x, caches):
        updated = []
        for block, cache in zip(self.blocks, caches):
            x, cache = block(x, cache)
            updated.append(cache)
        return x, updated

    def prompt(self, lead):
        """Read the lead melody; returns the caches and the first latent."""
        _, caches = self._run(self.lead(lead), [None] * len(self.blocks))
        return caches, self.start.expand(len(lead), -1, -1)

    def step(self, latent, caches):
        x, caches = self._run(self.inp(latent), caches)
        return self.out(self.norm(x)), caches
