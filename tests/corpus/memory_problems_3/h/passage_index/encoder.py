from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn


@dataclass
class EncoderConfig:
    vocab_size: int = 30522
    dim: int = 768
    heads: int = 12
    layers: int = 6
    max_length: int = 512
    pooling: str = "cls"


class EncoderLayer(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.heads = cfg.heads
        self.qkv = nn.Linear(cfg.dim, 3 * cfg.dim)
        self.out = nn.Linear(cfg.dim, cfg.dim)
        self.norm1 = nn.LayerNorm(cfg.dim)
        self.fc1 = nn.Linear(cfg.dim, 4 * cfg.dim)
        self.fc2 = nn.Linear(4 * cfg.dim, cfg.dim)
        self.norm2 = nn.LayerNorm(cfg.dim)

    def forward(self, x):
        b, n, d = x.shape
        qkv = self.qkv(x).view(b, n, 3, self.heads, d // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        attn = F.scaled_dot_product_attention(q, k, v)
        x = self.norm1(x + self.out(attn.transpose(1, 2).reshape(b, n, d)))
        return self.norm2(x + self.fc2(F.gelu(self.fc1(x))))


class PassageEncoder(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg
        self.tokens = nn.Embedding(cfg.vocab_size, cfg.dim)
        self.positions = nn.Embedding(cfg.max_length, cfg.dim)
        self.layers = nn.ModuleList(EncoderLayer(cfg) for _ in range(cfg.layers))

    def forward(self, input_ids, attention_mask):
        pos = torch.arange(input_ids.shape[1], device=input_ids.device)
        hidden = self.tokens(input_ids) + self.positions(pos)
        for layer in self.layers:
            hidden = layer(hidden)
        return hidden

    @torch.no_grad()
    def embed(self, input_ids, attention_mask):
        hidden = self(input_ids, attention_mask)
        if self.cfg.pooling == "cls":
            return hidden[:, 0]
        weights = attention_mask.unsqueeze(-1).to(hidden.dtype)
        return (hidden * weights).sum(1) / weights.sum(1).clamp(min=1e-6)
