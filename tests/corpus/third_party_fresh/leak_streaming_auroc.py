"""Click prediction with a streaming AUROC; scores and labels are joined to those before, on the device.

The metric should begin anew with each day of data, but it is only asked for its value, never reset.
"""

import sys

import torch
from torch import nn


class StreamingAuroc:
    def __init__(self, device):
        self.device = device
        self.reset()

    def reset(self):
        self.scores = torch.empty(0, device=self.device)
        self.labels = torch.empty(0, dtype=torch.bool, device=self.device)

    @torch.no_grad()
    def update(self, logits, labels):
        self.scores = torch.cat([self.scores, logits.sigmoid()])  # LEAK
        self.labels = torch.cat([self.labels, labels.bool()])  # LEAK

    def compute(self):
        order = self.scores.argsort()
        ranks = torch.empty_like(self.scores)
        ranks[order] = torch.arange(1, len(order) + 1, device=self.device, dtype=ranks.dtype)
        positive = self.labels.sum().item()
        negative = len(order) - positive
        return (ranks.double()[self.labels].sum().item() - positive * (positive + 1) / 2) / max(positive * negative, 1)


class ClickModel(nn.Module):
    def __init__(self, sites=300, ads=500, width=16):
        super().__init__()
        self.site = nn.Embedding(sites, width)
        self.ad = nn.Embedding(ads, width)
        self.deep = nn.Sequential(nn.Linear(2 * width, 48), nn.ReLU(), nn.Linear(48, 1))

    def forward(self, site, ad):
        s, a = self.site(site), self.ad(ad)
        return (s * a).sum(dim=1) + self.deep(torch.cat([s, a], dim=1)).squeeze(1)


def main():
    device = sys.argv[1]
    torch.manual_seed(7)
    torch.set_num_threads(1)
    model = ClickModel().to(device)
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.05)
    auroc = StreamingAuroc(device)
    taste = torch.randn(300, 4, device=device)
    theme = torch.randn(500, 4, device=device)
    for day in range(6):
        for _ in range(90):
            site = torch.randint(0, 300, (1024,), device=device)
            ad = torch.randint(0, 500, (1024,), device=device)
            chance = torch.sigmoid((taste[site] * theme[ad]).sum(dim=1) - 1.0)
            clicked = torch.bernoulli(chance)
            logits = model(site, ad)
            loss = nn.functional.binary_cross_entropy_with_logits(logits, clicked)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            auroc.update(logits, clicked)  # LEAK
        print(f"day {day}: AUROC {auroc.compute():.4f}")


if __name__ == "__main__":
    main()
