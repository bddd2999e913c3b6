import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint_sequential


class TubeletEmbed(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.tubelet = cfg.tubelet
        t, h, w = cfg.tubelet
        self.proj = nn.Linear(3 * t * h * w, cfg.dim)
        self.pos = nn.Parameter(torch.zeros(1, cfg.tokens, cfg.dim))

    def forward(self, clip):
        t, h, w = self.tubelet
        b, c, nt, nh, nw = clip.shape
        x = clip.view(b, c, nt // t, t, nh // h, h, nw // w, w)
        x = x.permute(0, 2, 4, 6, 1, 3, 5, 7).reshape(b, -1, c * t * h * w)
        return self.proj(x) + self.pos


class Block(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.heads = cfg.heads
        self.norm1, self.norm2 = nn.LayerNorm(cfg.dim), nn.LayerNorm(cfg.dim)
        self.qkv = nn.Linear(cfg.dim, 3 * cfg.dim)
        self.proj = nn.Linear(cfg.dim, cfg.dim)
        self.mlp = nn.Sequential(nn.Linear(cfg.dim, 4 * cfg.dim), nn.GELU(), nn.Linear(4 * cfg.dim, cfg.dim))
        self.drop = nn.Dropout(cfg.dropout)

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, n, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, d)
        x = x + self.drop(self.proj(attended))
        return x + self.drop(self.mlp(self.norm2(x)))


class EventSpotter(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg
        self.embed = TubeletEmbed(cfg)
        self.blocks = nn.Sequential(*(Block(cfg) for _ in range(cfg.depth)))
        self.norm = nn.LayerNorm(cfg.dim)
        self.event = nn.Linear(cfg.dim, cfg.events + 1)
        self.offset = nn.Linear(cfg.dim, 1)

    def encode(self, x):
        if self.training and self.cfg.recompute:
            return checkpoint_sequential(self.blocks, self.cfg.segments, x, use_reentrant=False)
        return self.blocks(x)

    def forward(self, clip):
        x = self.norm(self.encode(self.embed(clip))).mean(1)
        return self.event(x), self.offset(x).squeeze(-1)
