"""Adapts a shared encoder to one client after the other; the head is replaced for each client, in the same optimizer.

The new parameters take the place of the old ones in the group, but the optimizer's state of the old ones stays, and its keys
are the old parameters themselves.
"""

import sys

import torch
from torch import nn


def make_head(width, classes, device):
    return nn.Sequential(nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, classes)).to(device)  # LEAK


class Personalizer:
    def __init__(self, device, width=96, classes=20):
        self.device = device
        self.width = width
        self.classes = classes
        self.encoder = nn.Sequential(nn.Linear(40, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()).to(device)
        self.head = make_head(width, classes, device)  # LEAK
        self.optimizer = torch.optim.AdamW(
            [{"params": list(self.encoder.parameters()), "lr": 3e-4}, {"params": list(self.head.parameters()), "lr": 2e-3}]
        )

    def next_client(self):
        self.head = make_head(self.width, self.classes, self.device)  # LEAK
        self.optimizer.param_groups[1]["params"] = list(self.head.parameters())

    def learn(self, x, labels):
        logits = self.head(self.encoder(x))
        loss = nn.functional.cross_entropy(logits, labels)
        self.optimizer.zero_grad()
        loss.backward()  # LEAK
        self.optimizer.step()  # LEAK
        return (logits.argmax(dim=1) == labels).float().mean().item()


def client_data(seed, device):
    generator = torch.Generator().manual_seed(seed)
    centers = torch.randn(20, 40, generator=generator)
    labels = torch.randint(0, 20, (800,), generator=generator)
    x = centers[labels] + 0.7 * torch.randn(800, 40, generator=generator)
    return x.to(device), labels.to(device)


def main():
    device = sys.argv[1]
    torch.manual_seed(3)
    torch.set_num_threads(1)
    personalizer = Personalizer(device)
    scores = []
    for client in range(36):
        if client:
            personalizer.next_client()  # LEAK
        x, labels = client_data(100 + client, device)
        for rows in torch.randperm(len(x)).to(device).split(50):
            accuracy = personalizer.learn(x[rows], labels[rows])  # LEAK
        scores.append(accuracy)
    print(f"accuracy after the last batch of a client: {sum(scores) / len(scores):.3f}")


if __name__ == "__main__":
    main()
