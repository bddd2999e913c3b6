"""Trains a language model. A sampler wants to know which tokens are hard, so it keeps the loss of each token.

A few KiB stay of each step, beside logits of several MiB that come and go.
"""

import sys

import torch
from torch import nn


class TinyLanguageModel(nn.Module):
    def __init__(self, vocabulary, width=32):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.recurrent = nn.GRU(width, width, batch_first=True)
        self.out = nn.Linear(width, vocabulary)

    def forward(self, tokens):
        hidden, _ = self.recurrent(self.embed(tokens))
        return self.out(hidden)


class DifficultySampler:
    def __init__(self):
        self.seen = []

    def update(self, losses):
        self.seen.append(losses)  # LEAK

    def temperature(self):
        return 1.0 / (1 + len(self.seen) // 100)


def main():
    device = sys.argv[1]
    torch.manual_seed(41)
    torch.set_num_threads(1)
    vocabulary, batch, length = 800, 32, 24
    model = TinyLanguageModel(vocabulary).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    sampler = DifficultySampler()
    for _step in range(260):
        tokens = torch.randint(0, vocabulary, (batch, length + 1), device=device)
        logits = model(tokens[:, :-1])
        targets = tokens[:, 1:].reshape(-1)
        losses = nn.functional.cross_entropy(logits.reshape(-1, vocabulary), targets, reduction="none")  # LEAK
        losses.mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        sampler.update(losses.detach())
    print(f"{len(sampler.seen)} steps, temperature {sampler.temperature():.2f}")


if __name__ == "__main__":
    main()
