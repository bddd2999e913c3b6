"""Clause tagging on contracts of very different length (one document a step)."""
import logging
import random

import torch
import torch.nn as nn
import torch.nn.functional as F

from texttools.rotary import rotary_table, rotate

log = logging.getLogger("tagger")
TAGS = ["O", "PARTY", "TERM", "LIABILITY", "GOVERNING_LAW", "RENEWAL", "PAYMENT"]


class SelfAttention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads, self.head_dim = heads, dim // heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x):
        n, d = x.shape
        q, k, v = self.qkv(x).view(n, 3, self.heads, self.head_dim).permute(1, 2, 0, 3)
        table = rotary_table(n, self.head_dim, x.device)
        q, k = rotate(q, table), rotate(k, table)
        y = F.scaled_dot_product_attention(q.unsqueeze(0), k.unsqueeze(0), v.unsqueeze(0))[0]
        return self.proj(y.transpose(0, 1).reshape(n, d))


class Tagger(nn.Module):
    def __init__(self, vocab=6000, dim=128, heads=1, layers=2):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.attn = nn.ModuleList(SelfAttention(dim, heads) for _ in range(layers))
        self.ff = nn.ModuleList(
            nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim)) for _ in range(layers))
        self.norm = nn.ModuleList(nn.LayerNorm(dim) for _ in range(2 * layers))
        self.out = nn.Linear(dim, len(TAGS))

    def forward(self, ids):
        x = self.embed(ids)
        for i, (attn, ff) in enumerate(zip(self.attn, self.ff)):
            x = x + attn(self.norm[2 * i](x))
            x = x + ff(self.norm[2 * i + 1](x))
        return self.out(x)


class Documents:
    def __init__(self, seed, count):
        self.rng, self.count = random.Random(seed), count

    def __iter__(self):
        for _ in range(self.count):
            length = int(min(4000, max(120, self.rng.lognormvariate(6.8, 0.6))))
            ids = torch.randint(0, 6000, (length,))
            tags = torch.randint(0, len(TAGS), (length,))
            yield ids, tags


def main():
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    torch.manual_seed(0)
    device = torch.device("cuda")
    model = Tagger().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4)
    tokens = 0
    for step, (ids, tags) in enumerate(Documents(seed=31, count=200), 1):
        ids, tags = ids.to(device), tags.to(device)
        loss = F.cross_entropy(model(ids), tags)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        tokens += ids.numel()
        if step % 50 == 0:
            log.info("step %d tokens %d loss %.3f", step, tokens, loss.item())


if __name__ == "__main__":
    main()
