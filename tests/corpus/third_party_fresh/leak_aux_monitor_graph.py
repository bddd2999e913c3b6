"""Semi-supervised training; the consistency loss is only watched until it is small enough to be trained on.

Its running mean is never detached, so the mean holds the graph of the consistency pass of every step.
"""

import sys

import torch
from torch import nn


class Student(nn.Module):
    def __init__(self, inputs=32, hidden=96, classes=8):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(inputs, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh())
        self.head = nn.Linear(hidden, classes)

    def forward(self, x):
        h = self.body(x)  # LEAK
        return self.head(h)  # LEAK


class ConsistencyMonitor:
    def __init__(self, threshold, decay=0.97):
        self.threshold = threshold
        self.decay = decay
        self.mean = None

    def update(self, value):
        if self.mean is None:
            self.mean = value  # LEAK
        else:
            self.mean = self.decay * self.mean + (1 - self.decay) * value  # LEAK

    def ready(self):
        return self.mean is not None and self.mean.item() < self.threshold


def consistency(student, unlabeled):
    weak = unlabeled + 0.05 * torch.randn_like(unlabeled)
    strong = unlabeled + 0.5 * torch.randn_like(unlabeled)  # LEAK
    with torch.no_grad():
        target = student(weak).softmax(dim=1)  # LEAK
    return -(target * student(strong).log_softmax(dim=1)).sum(dim=1).mean()  # LEAK


def main():
    device = sys.argv[1]
    torch.manual_seed(4)
    torch.set_num_threads(1)
    student = Student().to(device)
    optimizer = torch.optim.Adam(student.parameters(), lr=1e-3)
    monitor = ConsistencyMonitor(threshold=0.02)
    centers = torch.randn(8, 32, device=device)
    for step in range(450):
        labels = torch.randint(0, 8, (48,), device=device)
        x = centers[labels] + torch.randn(48, 32, device=device)
        unlabeled = centers[torch.randint(0, 8, (48,), device=device)] + torch.randn(48, 32, device=device)
        loss = nn.functional.cross_entropy(student(x), labels)
        watched = consistency(student, unlabeled)  # LEAK
        monitor.update(watched)  # LEAK
        if monitor.ready():
            loss = loss + 0.3 * watched
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 90 == 0:
            print(f"{step}: {loss.item():.4f}, consistency {monitor.mean.item():.4f}")


if __name__ == "__main__":
    main()
