"""Trains an auto-encoder and keeps the reconstruction errors of the samples for a "hard examples" report at the end.

True cause: each step stores the full error map of its batch (some megabytes on the device, detached, but never
removed); the memory grows evenly until it is full after hundreds of steps, in whatever line comes then.
The line: `self.seen.append((step, errors))` with the errors made by `errors = (reconstruction - batch).detach().square()`.
Cure: keep one number per sample on the host (errors.mean(1).cpu()), or only the k worst samples.
"""

import heapq

import torch
from torch import nn


class HardExamples:
    """Reports the samples with the largest error."""

    def __init__(self, top=20):
        self.top = top
        self.seen = []

    def update(self, step, reconstruction, batch):
        errors = (reconstruction - batch).detach().square()  # CAUSE
        self.seen.append((step, errors))  # CAUSE

    def report(self):
        scored = ((errors.mean(dim=1).max().item(), step) for step, errors in self.seen)
        return heapq.nlargest(self.top, scored)


class AutoEncoder(nn.Module):
    def __init__(self, inputs=8192, hidden=512, code=32):
        super().__init__()
        self.encode = nn.Sequential(nn.Linear(inputs, hidden), nn.ELU(), nn.Linear(hidden, code))
        self.decode = nn.Sequential(nn.Linear(code, hidden), nn.ELU(), nn.Linear(hidden, inputs))

    def forward(self, x):
        return self.decode(self.encode(x))


def main(steps=1500, batch_size=128):
    torch.manual_seed(5)
    device = torch.device("cuda")
    model = AutoEncoder().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    hard = HardExamples()
    pool = torch.randn(1024, 8192)
    for step in range(steps):
        start = (step * batch_size) % len(pool)
        batch = pool[start : start + batch_size].to(device)
        reconstruction = model(batch)
        loss = nn.functional.mse_loss(reconstruction, batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        hard.update(step, reconstruction, batch)
        if step % 100 == 0:
            print(f"step {step}: loss {loss.item():.4f}", flush=True)
    for error, step in hard.report():
        print(f"step {step}: error {error:.4f}")


if __name__ == "__main__":
    main()
