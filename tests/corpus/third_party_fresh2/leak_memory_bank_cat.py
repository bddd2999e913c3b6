"""Contrastive learning with a bank of negatives that grows by torch.cat; the check that cuts it to its limit looks at the wrong dimension."""

import sys

import torch
import torch.nn.functional as F
from torch import nn

LIMIT = 1024
WIDTH = 64


class Bank:
    def __init__(self, device):
        self.keys = torch.zeros(0, WIDTH, device=device)

    def add(self, keys):
        self.keys = torch.cat([self.keys, keys.detach()])  # LEAK
        if self.keys.size(1) > LIMIT:
            self.keys = self.keys[-LIMIT:].clone()


def contrast(query, key, negatives, temperature=0.1):
    positive = (query * key).sum(dim=1, keepdim=True)
    logits = torch.cat([positive, query @ negatives.T], dim=1) / temperature
    return F.cross_entropy(logits, torch.zeros(len(query), dtype=torch.long, device=query.device))


def main():
    device = sys.argv[1]
    torch.manual_seed(53)
    torch.set_num_threads(1)
    encoder = nn.Sequential(nn.Linear(60, 128), nn.ReLU(), nn.Linear(128, WIDTH)).to(device)
    optimizer = torch.optim.SGD(encoder.parameters(), lr=0.03, momentum=0.9)
    bank = Bank(device)
    for _ in range(300):
        items = torch.randn(24, 60, device=device)
        query = F.normalize(encoder(items + 0.1 * torch.randn_like(items)), dim=1)
        with torch.no_grad():
            key = F.normalize(encoder(items), dim=1)
        loss = contrast(query, key, bank.keys)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        bank.add(key)
    print("contrastive training done")


if __name__ == "__main__":
    main()
