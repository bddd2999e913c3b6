"""Contrastive training whose queue of negatives is rebuilt with torch.cat and cut to its last 1024 rows."""

import sys

import torch
from torch import nn
from torch.nn import functional as F


class MomentumContrast(nn.Module):
    def __init__(self, length=1024, width=48):
        super().__init__()
        self.length = length
        self.query = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, width))
        self.key = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, width)).requires_grad_(False)
        self.key.load_state_dict(self.query.state_dict())
        self.queue = None

    @torch.no_grad()
    def encode_keys(self, x):
        for q, k in zip(self.query.parameters(), self.key.parameters(), strict=True):
            k.lerp_(q, 0.01)
        return F.normalize(self.key(x), dim=1)

    def forward(self, x, augmented):
        q = F.normalize(self.query(x), dim=1)
        k = self.encode_keys(augmented)
        negatives = self.queue if self.queue is not None else k
        logits = torch.cat([(q * k).sum(dim=1, keepdim=True), q @ negatives.T], dim=1) / 0.2
        joined = k if self.queue is None else torch.cat([self.queue, k])
        self.queue = joined[-self.length :].clone()
        return F.cross_entropy(logits, torch.zeros(len(q), dtype=torch.long, device=q.device))


def main():
    device = sys.argv[1]
    torch.manual_seed(7)
    torch.set_num_threads(1)
    model = MomentumContrast().to(device)
    optimizer = torch.optim.SGD(model.query.parameters(), lr=0.03)
    for _ in range(260):
        x = torch.randn(8, 32, device=device)
        loss = model(x, x + 0.1 * torch.randn_like(x))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(tuple(model.queue.shape))


if __name__ == "__main__":
    main()
