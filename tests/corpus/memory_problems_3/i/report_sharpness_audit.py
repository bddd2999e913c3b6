"""Sharpness audit of credit-default scorecards.

Every candidate scorecard of a sweep is fitted for a few steps; afterwards the
trace of the Hessian of its loss is estimated with Hutchinson probes, and the
flattest candidates go on to the next stage.
"""
import sys

import torch
import torch.nn as nn
import torch.nn.functional as F

N_FEATURES = 256
WIDTH = 384
BATCH = 512
CANDIDATES = 90


class Scorecard(nn.Module):
    def __init__(self, width=WIDTH, depth=3):
        super().__init__()
        layers = [nn.Linear(N_FEATURES, width), nn.Tanh()]
        for _ in range(depth - 1):
            layers += [nn.Linear(width, width), nn.Tanh()]
        self.body = nn.Sequential(*layers)
        self.head = nn.Linear(width, 1)

    def forward(self, x):
        return self.head(self.body(x)).squeeze(-1)


class LoanBook:
    """Synthetic applications: numeric features and a default flag."""

    def __init__(self, device, rows=4096):
        gen = torch.Generator().manual_seed(11)
        self.features = torch.randn(rows, N_FEATURES, generator=gen).to(device)
        self.default = (torch.rand(rows, generator=gen) < 0.08).float().to(device)

    def batch(self, step):
        start = (step * BATCH) % (len(self.features) - BATCH + 1)
        return self.features[start:start + BATCH], self.default[start:start + BATCH]


def fit(model, book, steps=3, lr=0.05):
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    for step in range(steps):
        x, y = book.batch(step)
        optimizer.zero_grad()
        loss = F.binary_cross_entropy_with_logits(model(x), y)
        loss.backward()
        optimizer.step()
    optimizer.zero_grad()
    return model


def rademacher_like(tensors):
    return [torch.randint_like(t, 0, 2) * 2 - 1 for t in tensors]


def hessian_trace(model, x, y, probes=2):
    params = [p for p in model.parameters() if p.requires_grad]
    loss = F.binary_cross_entropy_with_logits(model(x), y)
    loss.backward(create_graph=True)
    grads = [p.grad for p in params]

    estimates = []
    for _ in range(probes):
        probe = rademacher_like(params)
        products = torch.autograd.grad(
            grads, params, grad_outputs=probe, retain_graph=True)
        estimates.append(sum(float((v * hv).sum()) for v, hv in zip(probe, products)))
    return sum(estimates) / len(estimates)


class SharpnessSweep:
    def __init__(self, device):
        self.device = device
        self.book = LoanBook(device)
        self.leaderboard = []

    def run_candidate(self, index):
        torch.manual_seed(index)
        model = Scorecard().to(self.device)
        fit(model, self.book)
        x, y = self.book.batch(index)
        trace = hessian_trace(model, x, y)
        self.leaderboard.append((trace, index))

    def run(self, count):
        for index in range(count):
            self.run_candidate(index)
            if index % 15 == 14:
                best = min(self.leaderboard)
                print(f"{index + 1:3d} candidates, flattest so far: #{best[1]}")
        return sorted(self.leaderboard)[:10]


def main():
    device = torch.device(sys.argv[1] if len(sys.argv) > 1 else "cuda")
    sweep = SharpnessSweep(device)
    shortlist = sweep.run(CANDIDATES)
    print("shortlist:", [index for _, index in shortlist])


if __name__ == "__main__":
    main()
