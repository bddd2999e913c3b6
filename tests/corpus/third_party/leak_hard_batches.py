"""Trains a tagger and puts aside one batch of twenty for a look at the errors after training.

What is put aside is a copy on the device, and it is never written out or dropped.
"""

import sys

import torch
from torch import nn


class Tagger(nn.Module):
    def __init__(self, vocabulary=500, tags=12, width=64):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.mix = nn.Conv1d(width, width, 3, padding=1)
        self.out = nn.Linear(width, tags)

    def forward(self, tokens):
        hidden = self.embed(tokens).transpose(1, 2)
        hidden = torch.relu(self.mix(hidden)).transpose(1, 2)
        return self.out(hidden)


class ErrorReport:
    def __init__(self, every=20):
        self.every = every
        self.calls = 0
        self.cases = []

    def consider(self, tokens, logits):
        self.calls += 1
        if self.calls % self.every == 0:
            self.cases.append((tokens.clone(), logits.detach().softmax(dim=-1)))  # LEAK


def main():
    device = sys.argv[1]
    torch.manual_seed(7)
    torch.set_num_threads(1)
    model = Tagger().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    report = ErrorReport()
    for _step in range(400):
        tokens = torch.randint(0, 500, (16, 40), device=device)
        tags = tokens % 12
        logits = model(tokens)
        loss = nn.functional.cross_entropy(logits.reshape(-1, 12), tags.reshape(-1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        report.consider(tokens, logits)  # LEAK
    print(f"{len(report.cases)} cases put aside, last loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
