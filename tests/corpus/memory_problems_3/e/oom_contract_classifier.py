"""Classify contract clauses by type. Whole contracts go through a small encoder trained from scratch."""
import argparse
import logging
import math
import random

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

logging.basicConfig(level=logging.INFO, format="%(asctime)s | %(message)s", datefmt="%H:%M:%S")
logger = logging.getLogger("contracts")

PAD = 0
LABELS = ["lease", "employment", "loan", "licence", "supply", "merger"]


class ContractDataset(Dataset):
    """Token ids of contracts; the lengths follow those of the EDGAR exhibits."""

    def __init__(self, size, vocab, seed):
        rng = random.Random(seed)
        self.vocab = vocab
        self.lengths = [int(min(900, rng.lognormvariate(5.9, 0.4))) for _ in range(size)]
        for i in range(size // 2 + 37, size, 300):  # whole merger agreements with all schedules
            self.lengths[i] = 11200
        self.labels = [rng.randrange(len(LABELS)) for _ in range(size)]

    def __len__(self):
        return len(self.lengths)

    def __getitem__(self, index):
        g = torch.Generator().manual_seed(index)
        ids = torch.randint(1, self.vocab, (self.lengths[index],), generator=g)
        return ids, self.labels[index]


def collate(samples):
    ids = [s[0] for s in samples]
    batch = nn.utils.rnn.pad_sequence(ids, batch_first=True, padding_value=PAD)
    return batch, batch.ne(PAD), torch.tensor([s[1] for s in samples])


class SelfAttention(nn.Module):
    def __init__(self, dim, heads, dropout):
        super().__init__()
        self.heads, self.d_head = heads, dim // heads
        self.query, self.key, self.value = (nn.Linear(dim, dim) for _ in range(3))
        self.output = nn.Linear(dim, dim)
        self.dropout = nn.Dropout(dropout)

    def shape(self, x):
        return x.view(x.size(0), -1, self.heads, self.d_head).transpose(1, 2)

    def forward(self, x, mask):
        q, k, v = self.shape(self.query(x)), self.shape(self.key(x)), self.shape(self.value(x))
        scores = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(self.d_head)
        scores = scores.masked_fill(~mask[:, None, None, :], -1e4)
        probs = self.dropout(torch.softmax(scores, dim=-1))
        context = torch.matmul(probs, v).transpose(1, 2).flatten(2)
        return self.output(context)


class EncoderLayer(nn.Module):
    def __init__(self, dim, heads, dropout):
        super().__init__()
        self.attention = SelfAttention(dim, heads, dropout)
        self.ffn = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim), nn.Dropout(dropout))
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)

    def forward(self, x, mask):
        x = self.norm1(x + self.attention(x, mask))
        return self.norm2(x + self.ffn(x))


class ContractClassifier(nn.Module):
    def __init__(self, vocab, dim=192, heads=6, layers=2, dropout=0.1):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim, padding_idx=PAD)
        self.register_buffer("freq", torch.exp(torch.arange(0, dim, 2) * (-math.log(10000.0) / dim)))
        self.layers = nn.ModuleList(EncoderLayer(dim, heads, dropout) for _ in range(layers))
        self.classify = nn.Linear(dim, len(LABELS))

    def positions(self, length):
        angle = torch.arange(length, device=self.freq.device)[:, None] * self.freq[None]
        return torch.cat([angle.sin(), angle.cos()], dim=1)

    def forward(self, ids, mask):
        x = self.embed(ids) + self.positions(ids.size(1))
        for layer in self.layers:
            x = layer(x, mask)
        pooled = (x * mask.unsqueeze(-1)).sum(1) / mask.sum(1, keepdim=True)
        return self.classify(pooled)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--vocab", type=int, default=16000)
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--lr", type=float, default=3e-4)
    args = parser.parse_args()
    device = torch.device("cuda")
    torch.manual_seed(1)
    loader = DataLoader(ContractDataset(480, args.vocab, seed=5), args.batch_size, collate_fn=collate)
    model = ContractClassifier(args.vocab).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    for step, (ids, mask, labels) in enumerate(loader):
        ids, mask, labels = ids.to(device), mask.to(device), labels.to(device)
        loss = F.cross_entropy(model(ids, mask), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0:
            logger.info("step %d/%d length %d loss %.4f", step, len(loader), ids.size(1), loss.item())


if __name__ == "__main__":
    main()
