"""Embeds the text of a catalogue for the retrieval stage of a recommender, in batches of similar length."""
import random
from dataclasses import dataclass

import torch
from torch import nn


@dataclass
class Item:
    item_id: int
    tokens: list


class ItemEncoder(nn.Module):
    def __init__(self, vocab=8_000, width=256, heads=8, layers=4):
        super().__init__()
        self.heads = heads
        self.embed = nn.Embedding(vocab, width, padding_idx=0)
        self.qkv = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(layers))
        self.out = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.feed = nn.ModuleList(nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
                                  for _ in range(layers))

    def attend(self, x, projection, out, mask):
        batch, length, width = x.shape
        q, k, v = projection(x).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        weights = (q @ k.transpose(-2, -1) * (width // self.heads) ** -0.5).masked_fill(mask, -1e9).softmax(dim=-1)
        return out((weights @ v).transpose(1, 2).reshape(batch, length, width))

    def forward(self, tokens):
        mask = tokens.eq(0)[:, None, None, :]
        x = self.embed(tokens)
        for projection, out, feed in zip(self.qkv, self.out, self.feed):
            x = x + self.attend(x, projection, out, mask)
            x = x + feed(x)
        return nn.functional.normalize(x.mean(dim=1), dim=-1)


class SortedSeqLoader:
    """Batches of items ordered by length, so that little is padded."""

    def __init__(self, items, batch_size):
        self.items = sorted(items, key=lambda item: len(item.tokens))
        self.batch_size = batch_size

    def __len__(self):
        return -(-len(self.items) // self.batch_size)

    def __iter__(self):
        for start in range(0, len(self.items), self.batch_size):
            chunk = self.items[start:start + self.batch_size]
            length = max(len(item.tokens) for item in chunk)
            tokens = torch.zeros(len(chunk), length, dtype=torch.int64)
            for row, item in enumerate(chunk):
                tokens[row, : len(item.tokens)] = torch.tensor(item.tokens)
            yield [item.item_id for item in chunk], tokens.cuda()


class VectorIndex:
    def __init__(self, count, width):
        self.vectors = torch.zeros(count, width)

    def put(self, ids, vectors):
        self.vectors[ids] = vectors.cpu()

    def search(self, query, k):
        return (self.vectors @ query).topk(k).indices.tolist()


def catalogue(count, seed):
    rng = random.Random(seed)
    for index in range(count):
        length = min(448, max(12, int(rng.lognormvariate(4.6, 0.75))))
        yield Item(index, [rng.randrange(1, 8_000) for _ in range(length)])


@torch.inference_mode()
def embed_catalogue(encoder, items, batch_size):
    index = VectorIndex(len(items), 256)
    loader = SortedSeqLoader(items, batch_size)
    for number, (ids, tokens) in enumerate(loader):
        index.put(ids, encoder(tokens))
        if number % 25 == 0 or number == len(loader) - 1:
            print(f"batch {number} length {tokens.shape[1]} allocated peak {torch.cuda.max_memory_allocated() / 2**20:.0f} "
                  f"reserved {torch.cuda.memory_reserved() / 2**20:.0f} MiB")
    return index


if __name__ == "__main__":
    torch.manual_seed(0)
    encoder = ItemEncoder().cuda().eval()
    items = list(catalogue(9_600, seed=4))
    index = embed_catalogue(encoder, items, batch_size=48)
    print(index.search(index.vectors[0], 5), f"reserved peak {torch.cuda.max_memory_reserved() / 2**20:.0f} MiB")
