"""Frame encoder: log-mel features in, a summary vector and frame vectors out."""
import torch
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm_in = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm_mlp = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x):
        n, t, d = x.shape
        q, k, v = self.qkv(self.norm_in(x)).view(n, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(n, t, d)
        x = x + self.out(mixed)
        return x + self.mlp(self.norm_mlp(x))


class FrameEncoder(nn.Module):
    def __init__(self, mels=80, width=512, depth=4, heads=8):
        super().__init__()
        self.stem = nn.Linear(mels, width)
        self.summary = nn.Parameter(torch.zeros(1, 1, width))
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(width)

    def forward(self, mel):
        x = torch.cat([self.summary.expand(mel.shape[0], -1, -1), self.stem(mel)], dim=1)
        for block in self.blocks:
            x = block(x)
        return self.norm(x)

    @torch.inference_mode()
    def embed(self, mel):
        """Summary vector of one utterance, ready for the bank."""
        hidden = self(mel)
        return hidden[0, 0].detach().contiguous()
