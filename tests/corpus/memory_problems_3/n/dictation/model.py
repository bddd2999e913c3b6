import torch
import torch.nn.functional as F
from torch import nn


class FrameStack(nn.Module):
    def __init__(self, mels, dim, stack=4):
        super().__init__()
        self.stack = stack
        self.proj = nn.Linear(mels * stack, dim)

    def forward(self, x):
        b, t, m = x.shape
        x = F.pad(x, (0, 0, 0, -t % self.stack))
        return self.proj(x.reshape(b, -1, m * self.stack))


class EncoderLayer(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)
        self.ff = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x, valid):
        b, t, d = x.shape
        q, k, v = self.qkv(self.norm1(x) * valid).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        x = x + self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, t, d))
        return x + self.ff(self.norm2(x))


class DictationModel(nn.Module):
    def __init__(self, mels, vocab, dim=512, layers=10, heads=8):
        super().__init__()
        self.frontend = FrameStack(mels, dim)
        self.layers = nn.ModuleList(EncoderLayer(dim, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, vocab)

    def forward(self, features, lengths):
        x = self.frontend(features)
        out_lengths = (lengths + 3) // 4
        valid = torch.arange(x.shape[1])[None, :, None] < out_lengths[:, None, None]
        valid = valid.to(x.device, x.dtype)
        for layer in self.layers:
            x = layer(x, valid)
        return self.head(self.norm(x)), out_lengths
