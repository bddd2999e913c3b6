"""Builds a search index over patent claims and answers a few prior-art queries."""
import sys
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

VOCAB = 32_000
DIM = 768
MAX_TOKENS = 384
BATCH = 96
N_CLAIMS = 9_600


class ClaimEncoder(nn.Module):
    """Bidirectional encoder with a summary token in front of the text."""

    def __init__(self, depth=3, heads=12):
        super().__init__()
        self.tokens = nn.Embedding(VOCAB, DIM, padding_idx=0)
        self.positions = nn.Embedding(MAX_TOKENS + 1, DIM)
        self.summary = nn.Parameter(torch.zeros(1, 1, DIM))
        self.layers = nn.ModuleList(
            nn.ModuleDict({
                "norm1": nn.LayerNorm(DIM), "qkv": nn.Linear(DIM, 3 * DIM), "out": nn.Linear(DIM, DIM),
                "norm2": nn.LayerNorm(DIM), "up": nn.Linear(DIM, 4 * DIM), "down": nn.Linear(4 * DIM, DIM),
            }) for _ in range(depth))
        self.heads = heads
        self.final = nn.LayerNorm(DIM)

    def attend(self, layer, x):
        batch, length, _ = x.shape
        q, k, v = layer["qkv"](x).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        out = F.scaled_dot_product_attention(q, k, v)
        return layer["out"](out.transpose(1, 2).reshape(batch, length, DIM))

    def forward(self, ids):
        x = torch.cat([self.summary.expand(len(ids), -1, -1), self.tokens(ids)], dim=1)
        x = x + self.positions.weight[: x.shape[1]]
        for layer in self.layers:
            x = x + self.attend(layer, layer["norm1"](x))
            x = x + layer["down"](F.gelu(layer["up"](layer["norm2"](x))))
        return self.final(x)


class ClaimIndex:
    def __init__(self, encoder, device):
        self.encoder, self.device = encoder, device
        self.vectors = []
        self.numbers = []

    @torch.inference_mode()
    def embed(self, ids):
        states = self.encoder(ids.to(self.device))
        return states[:, 0]

    def add(self, numbers, ids):
        self.vectors.append(self.embed(ids))
        self.numbers.extend(numbers)

    def build(self):
        self.matrix = F.normalize(torch.cat(self.vectors).float(), dim=-1)
        self.vectors.clear()

    def search(self, ids, k=5):
        query = F.normalize(self.embed(ids).float(), dim=-1)
        hits = (query @ self.matrix.T).topk(k).indices.cpu()
        return [[self.numbers[min(max(int(i), 0), len(self.numbers) - 1)] for i in row] for row in hits]


def read_claims(count, generator):
    for start in range(0, count, BATCH):
        size = min(BATCH, count - start)
        ids = torch.randint(1, VOCAB, (size, MAX_TOKENS), generator=generator)
        yield [f"EP{3_000_000 + start + i}" for i in range(size)], ids


def main():
    device = torch.device(sys.argv[1] if len(sys.argv) > 1 else "cuda")
    torch.manual_seed(2)
    generator = torch.Generator().manual_seed(2)
    encoder = ClaimEncoder().to(device=device, dtype=torch.float16).eval()
    index = ClaimIndex(encoder, device)
    started = time.time()
    for number, (numbers, ids) in enumerate(read_claims(N_CLAIMS, generator)):
        index.add(numbers, ids)
        if number % 10 == 0:
            print(f"{len(index.numbers)} claims, {time.time() - started:.1f} s", flush=True)
    index.build()
    print(f"index: {tuple(index.matrix.shape)}", flush=True)
    queries = torch.randint(1, VOCAB, (4, MAX_TOKENS), generator=generator)
    for hits in index.search(queries):
        print("  ", ", ".join(hits))


if __name__ == "__main__":
    main()
