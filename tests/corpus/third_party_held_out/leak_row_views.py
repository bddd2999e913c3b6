"""A reading service that remembers one small vector for each page it has read, the first row of the encoder's output.

The row is a view: it keeps the output for the whole page alive.
"""

import random
import sys

import torch
from torch import nn


class PageEncoder(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.embed = nn.Embedding(900, width)
        self.attention = nn.MultiheadAttention(width, 4, batch_first=True)
        self.norm = nn.LayerNorm(width)

    def forward(self, tokens):
        x = self.embed(tokens)
        mixed, _ = self.attention(x, x, x, need_weights=False)
        return self.norm(x + mixed)  # LEAK


class Reader:
    def __init__(self, device):
        self.device = device
        self.encoder = PageEncoder().to(device).eval()
        self.summaries = {}

    @torch.no_grad()
    def read(self, page, length):
        tokens = torch.randint(0, 900, (1, length), device=self.device)
        hidden = self.encoder(tokens)  # LEAK
        self.summaries[page] = hidden[0, 0]  # LEAK
        return hidden.mean(dim=1)

    @torch.no_grad()
    def similar(self, page):
        known = torch.stack(list(self.summaries.values())[-50:])
        return (known @ self.summaries[page]).topk(min(3, len(known))).indices


def main():
    torch.manual_seed(35)
    torch.set_num_threads(1)
    rng = random.Random(35)
    reader = Reader(sys.argv[1])
    for page in range(260):
        reader.read(page, rng.randint(40, 160))
        reader.similar(page)
    print(f"{len(reader.summaries)} pages read")


if __name__ == "__main__":
    main()
