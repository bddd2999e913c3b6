import torch
import torch.nn as nn
import torch.nn.functional as F


class KVCache:
    """Keys and values of one conversation, one preallocated tensor per layer."""

    def __init__(self, layers, heads, max_tokens, head_dim, device, dtype):
        shape = (2, heads, max_tokens, head_dim)
        self.layers = [torch.empty(shape, device=device, dtype=dtype) for _ in range(layers)]
        self.length = 0
        self.max_tokens = max_tokens

    def append(self, layer, k, v):
        end = self.length + k.shape[1]
        store = self.layers[layer]
        store[0, :, self.length:end] = k
        store[1, :, self.length:end] = v
        return store[0, :, :end], store[1, :, :end]


class ChatModel(nn.Module):
    def __init__(self, vocab=32000, dim=768, layers=12, heads=12):
        super().__init__()
        self.heads, self.head_dim, self.n_layers = heads, dim // heads, layers
        self.embed = nn.Embedding(vocab, dim)
        self.norms = nn.ModuleList(nn.LayerNorm(dim) for _ in range(layers))
        self.qkv = nn.ModuleList(nn.Linear(dim, 3 * dim) for _ in range(layers))
        self.out = nn.ModuleList(nn.Linear(dim, dim) for _ in range(layers))
        self.mlp = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))
            for _ in range(layers))
        self.final = nn.LayerNorm(dim)

    def new_cache(self, max_tokens):
        weight = self.embed.weight
        return KVCache(self.n_layers, self.heads, max_tokens, self.head_dim, weight.device, weight.dtype)

    def forward(self, ids, cache):
        x = self.embed(ids)
        n = x.shape[0]
        for i in range(self.n_layers):
            q, k, v = self.qkv[i](self.norms[i](x)).view(n, 3, self.heads, self.head_dim).permute(1, 2, 0, 3)
            k, v = cache.append(i, k, v)
            attn = F.scaled_dot_product_attention(q[None], k[None], v[None], is_causal=n == k.shape[1] and n > 1)
            x = x + self.out[i](attn[0].transpose(0, 1).reshape(n, -1))
            x = x + self.mlp[i](x)
        cache.length += n
        return self.final(x[-1]) @ self.embed.weight.T
