import torch
import torch.nn.functional as F
from torch import nn


class KVCache:
    def __init__(self):
        self.k = self.v = None

    def extend(self, k, v):
        self.k = k if self.k is None else torch.cat([self.k, k], dim=2)
        self.v = v if self.v is None else torch.cat([self.v, v], dim=2)
        return self.k, self.v


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)
        self.fc = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x, cache):
        b, t, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        k, v = cache.extend(k, v)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=t > 1)
        x = x + self.proj(y.transpose(1, 2).reshape(b, t, d))
        return x + self.fc(self.norm2(x))


class CausalLM(nn.Module):
    def __init__(self, vocab=48000, width=768, heads=12, layers=8, max_len=4096):
        super().__init__()
        self.tok = nn.Embedding(vocab, width)
        self.pos = nn.Embedding(max_len, width)
        self.blocks = nn.ModuleList([Block(width, heads) for _ in range(layers)])
        self.norm = nn.LayerNorm(width)
        self.lm_head = nn.Linear(width, vocab, bias=False)

    def new_caches(self):
        return [KVCache() for _ in self.blocks]

    def forward(self, ids, caches, offset=0):
        pos = torch.arange(offset, offset + ids.shape[1], device=ids.device)
        x = self.tok(ids) + self.pos(pos)
        for block, cache in zip(self.blocks, caches):
            x = block(x, cache)
        return self.lm_head(self.norm(x))
