import torch
import torch.nn as nn
import torch.nn.functional as F


class RMSNorm(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.g = nn.Parameter(torch.ones(d))

    def forward(self, x):
        return F.rms_norm(x, self.g.shape, self.g)


class Block(nn.Module):
    def __init__(self, d, heads, ff):
        super().__init__()
        self.heads = heads
        self.n1, self.n2 = RMSNorm(d), RMSNorm(d)
        self.q, self.k = nn.Linear(d, d, bias=False), nn.Linear(d, d, bias=False)
        self.v, self.o = nn.Linear(d, d, bias=False), nn.Linear(d, d, bias=False)
        self.gate, self.lift = nn.Linear(d, ff, bias=False), nn.Linear(d, ff, bias=False)
        self.drop = nn.Linear(ff, d, bias=False)

    def split(self, x):
        return x.view(x.shape[0], x.shape[1], self.heads, -1).transpose(1, 2)

    def forward(self, x):
        h = self.n1(x)
        a = F.scaled_dot_product_attention(self.split(self.q(h)), self.split(self.k(h)), self.split(self.v(h)), is_causal=True)
        x = x + self.o(a.transpose(1, 2).reshape(x.shape))
        h = self.n2(x)
        return x + self.drop(F.silu(self.gate(h)) * self.lift(h))


class Decoder(nn.Module):
    def __init__(self, vocab=24000, d=2048, layers=18, heads=16, ff=5504, context=1024):
        super().__init__()
        self.tok = nn.Embedding(vocab, d)
        self.pos = nn.Embedding(context, d)
        self.blocks = nn.ModuleList(Block(d, heads, ff) for _ in range(layers))
        self.norm = RMSNorm(d)

    def forward(self, ids):
        x = self.tok(ids) + self.pos(torch.arange(ids.shape[1], device=ids.device))
        for b in self.blocks:
            x = b(x)
        return F.linear(self.norm(x), self.tok.weight)
