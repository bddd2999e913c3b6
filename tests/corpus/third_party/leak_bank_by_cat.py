"""Contrastive training with a memory bank of negatives.

The bank is extended with torch.cat at every step and is never cut back to a fixed size.
"""

import sys

import torch
from torch import nn
from torch.nn import functional as F


class Contrastive(nn.Module):
    def __init__(self, device):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(48, 96), nn.ReLU(), nn.Linear(96, 64))
        self.bank = torch.empty(0, 64, device=device)

    def forward(self, first, second):
        a = F.normalize(self.encoder(first), dim=1)
        with torch.no_grad():
            b = F.normalize(self.encoder(second), dim=1)
        positive = (a * b).sum(dim=1, keepdim=True)
        negative = a @ self.bank.T
        logits = torch.cat([positive, negative], dim=1) / 0.1
        labels = torch.zeros(len(a), dtype=torch.long, device=a.device)
        self.extend(b)  # LEAK
        return F.cross_entropy(logits, labels)

    def extend(self, keys):
        self.bank = torch.cat([self.bank, keys])  # LEAK


def main():
    device = sys.argv[1] if len(sys.argv) > 1 else "cpu"
    torch.manual_seed(21)
    torch.set_num_threads(1)
    model = Contrastive(device).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for _ in range(200):
        base = torch.randn(24, 48, device=device)
        loss = model(base + 0.1 * torch.randn_like(base), base)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print("bank:", tuple(model.bank.shape))


if __name__ == "__main__":
    main()
