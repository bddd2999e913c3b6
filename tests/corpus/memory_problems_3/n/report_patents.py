"""Lexical index of patent claims: every claim becomes a vector of term weights over the vocabulary."""
import sys
import time

import torch
from torch import nn
from torch.nn import functional as F

VOCAB, WIDTH, LENGTH = 64_000, 384, 192
CLAIMS, BATCH, TOP_TERMS = 480, 48, 128
SPECIAL = (0, 1, 2, 3)


class ClaimEncoder(nn.Module):
    def __init__(self, depth=4, heads=6):
        super().__init__()
        self.heads = heads
        self.tokens = nn.Embedding(VOCAB, WIDTH)
        self.places = nn.Embedding(LENGTH, WIDTH)
        self.attend = nn.ModuleList(nn.Linear(WIDTH, 3 * WIDTH) for _ in range(depth))
        self.feed = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))
            for _ in range(depth)
        )

    def forward(self, ids, mask):
        n, t = ids.shape
        x = self.tokens(ids) + self.places.weight[:t]
        for attend, feed in zip(self.attend, self.feed):
            q, k, v = attend(x).view(n, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
            mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask[:, None, None, :])
            x = x + mixed.transpose(1, 2).reshape(n, t, WIDTH)
            x = x + feed(x)
        return x


class TermWeighter(nn.Module):
    """Weight of every vocabulary term: the highest weight of its occurrences in the claim."""

    def __init__(self):
        super().__init__()
        self.encoder = ClaimEncoder()
        self.weight = nn.Linear(WIDTH, 1)

    def forward(self, ids, mask):
        hidden = self.encoder(ids, mask)
        weights = torch.relu(self.weight(hidden)) * mask.unsqueeze(-1)
        return self.to_vocabulary(ids, weights)

    def to_vocabulary(self, ids, weights):
        table = torch.zeros(*ids.shape, VOCAB, dtype=weights.dtype, device=weights.device)
        table = table.scatter_(-1, ids.unsqueeze(-1), weights)
        terms = table.amax(dim=1)
        terms[:, list(SPECIAL)] = 0
        return terms


class LexicalIndex:
    def __init__(self, model, device):
        self.model, self.device = model, device
        self.values, self.columns = [], []

    def encode(self, ids, lengths):
        mask = torch.arange(ids.shape[1])[None, :] < lengths[:, None]
        with torch.inference_mode():
            return self.model(ids.to(self.device), mask.to(self.device))

    def add(self, ids, lengths):
        top = self.encode(ids, lengths).topk(TOP_TERMS, dim=-1)
        self.values.append(top.values.cpu())
        self.columns.append(top.indices.cpu())

    def frequencies(self):
        """Number of claims that a term is among the best of."""
        columns = torch.cat(self.columns).clamp(0, VOCAB - 1)
        return torch.bincount(columns.flatten(), minlength=VOCAB)

    def __len__(self):
        return sum(len(v) for v in self.values)


def claims(generator):
    for start in range(0, CLAIMS, BATCH):
        size = min(BATCH, CLAIMS - start)
        yield (
            torch.randint(4, VOCAB, (size, LENGTH), generator=generator),
            torch.randint(LENGTH // 3, LENGTH + 1, (size,), generator=generator),
        )


def main():
    device = torch.device(sys.argv[1] if len(sys.argv) > 1 else "cuda")
    torch.manual_seed(8)
    generator = torch.Generator().manual_seed(8)
    model = TermWeighter().to(device).half().eval()
    index = LexicalIndex(model, device)
    began = time.time()
    for number, (ids, lengths) in enumerate(claims(generator), start=1):
        index.add(ids, lengths)
        print(f"batch {number}: {number * BATCH} claims, {time.time() - began:.1f} s", flush=True)
    used = int((index.frequencies() > 0).sum())
    print(f"index of {len(index)} claims with {TOP_TERMS} terms each, {used} terms of the vocabulary used")
    print(f"highest device memory {torch.cuda.max_memory_allocated(device) / 2**20:.0f} MiB")


if __name__ == "__main__":
    main()
