"""Trains an LSTM tagger on a curriculum: sentences grow longer each epoch until they have their full length, and then stay so."""

import random
import sys

import torch
import torch.nn.functional as F
from torch import nn


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(500, 24)
        self.lstm = nn.LSTM(24, 32, batch_first=True)
        self.tags = nn.Linear(32, 12)

    def forward(self, sentences):
        return self.tags(self.lstm(self.words(sentences))[0])


def sentences(longest, rng, device):
    length = rng.randint(max(2, longest - 3), longest)
    words = torch.randint(0, 500, (8, length), device=device)
    return words, words % 12


def main():
    device = sys.argv[1]
    torch.manual_seed(149)
    torch.set_num_threads(1)
    rng = random.Random(149)
    tagger = Tagger().to(device)
    optimizer = torch.optim.Adam(tagger.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=16)
    longest = 4
    for epoch in range(16):
        for _ in range(12):
            words, tags = sentences(longest, rng, device)
            loss = F.cross_entropy(tagger(words).flatten(0, 1), tags.flatten())
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(tagger.parameters(), 1.0)
            optimizer.step()
        schedule.step()
        longest = min(44, longest + 4)
    print(f"longest sentence {longest}")


if __name__ == "__main__":
    main()
