"""Scores transactions and watches for drift: recent embeddings are compared with a reference from the first hours.

The reference is complete after 240 requests. The window of recent embeddings, which begins then, is trimmed by a slice
that nobody assigns.
"""

import sys

import torch
from torch import nn


class DriftMonitor:
    def __init__(self, reference_size, window):
        self.reference_size = reference_size
        self.window = window
        self.reference = []
        self.mean = None
        self.recent = []

    def observe(self, embedding):
        if self.mean is None:
            self.reference.append(embedding)
            if len(self.reference) == self.reference_size:
                self.mean = torch.cat(self.reference).mean(dim=0)
                self.reference.clear()
            return None
        self.recent.append(embedding)  # LEAK
        if len(self.recent) > self.window:
            self.recent[-self.window :]
        newest = torch.cat(self.recent[-self.window :])
        return (newest.mean(dim=0) - self.mean).norm()


class Scorer(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(40, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU())
        self.head = nn.Linear(128, 2)

    def forward(self, x):
        embedding = self.body(x)  # LEAK
        return embedding, self.head(embedding).softmax(dim=-1)


def main():
    device = sys.argv[1]
    torch.manual_seed(28)
    torch.set_num_threads(1)
    scorer = Scorer().to(device).eval()
    monitor = DriftMonitor(reference_size=240, window=30)
    alarms = 0
    with torch.inference_mode():
        for _request in range(700):
            transactions = torch.randn(24, 40, device=device)
            embedding, _scores = scorer(transactions)  # LEAK
            distance = monitor.observe(embedding)
            alarms += distance is not None
    print(f"compared {alarms} times with the reference")


if __name__ == "__main__":
    main()
