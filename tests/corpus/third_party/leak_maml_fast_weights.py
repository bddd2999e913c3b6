"""Meta-learning of sine curves in the manner of MAML.

The adapted weights of every task are kept for a plot of how far they moved, with the second-order graph behind them.
"""

import random
import sys

import torch
from torch.nn import functional as F


def network(x, weights):
    hidden = torch.relu(F.linear(x, weights[0], weights[1]))
    return F.linear(hidden, weights[2], weights[3])


class Learner:
    def __init__(self, device):
        shapes = [(40, 1), (40,), (1, 40), (1,)]
        self.weights = [(0.3 * torch.randn(s, device=device)).requires_grad_() for s in shapes]
        self.adapted_per_task = []

    def adapt(self, x, y, rate=0.01):
        loss = F.mse_loss(network(x, self.weights), y)
        gradients = torch.autograd.grad(loss, self.weights, create_graph=True)
        fast = [w - rate * g for w, g in zip(self.weights, gradients, strict=True)]  # LEAK
        self.adapted_per_task.append(fast)  # LEAK
        return fast


def main():
    device = sys.argv[1]
    torch.manual_seed(6)
    torch.set_num_threads(1)
    rng = random.Random(6)
    learner = Learner(device)
    optimizer = torch.optim.Adam(learner.weights, lr=1e-3)
    for _ in range(160):
        meta_loss = 0
        for _ in range(2):
            amplitude, phase = rng.uniform(0.1, 5), rng.uniform(0, 3)
            support, query = torch.rand(20, 1, device=device) * 10, torch.rand(20, 1, device=device) * 10
            fast = learner.adapt(support, amplitude * torch.sin(support + phase))  # LEAK
            meta_loss = meta_loss + F.mse_loss(network(query, fast), amplitude * torch.sin(query + phase))
        optimizer.zero_grad()
        meta_loss.backward()
        optimizer.step()
    print("tasks seen:", len(learner.adapted_per_task), "meta loss:", meta_loss.item())


if __name__ == "__main__":
    main()
