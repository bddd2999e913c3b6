"""Fine-tunes with gradual pruning: a mask for each weight, and a hook that applies it to the weight's gradient.

The masks are renewed every four steps, each time with new hooks;
the old hooks stay on the weights and hold the old masks.
"""

import sys

import torch
from torch import nn


class Pruner:
    def __init__(self, model, final_sparsity, updates):
        self.weights = [parameter for parameter in model.parameters() if parameter.dim() == 2]
        self.final_sparsity = final_sparsity
        self.updates = updates
        self.done = 0

    def make_mask(self, weight, sparsity):
        count = max(1, int(weight.numel() * sparsity))
        threshold = weight.detach().abs().flatten().kthvalue(count).values
        return (weight.detach().abs() > threshold).float()  # LEAK

    def update(self):
        self.done += 1
        sparsity = self.final_sparsity * min(1.0, self.done / self.updates)
        for weight in self.weights:
            mask = self.make_mask(weight, sparsity)  # LEAK
            weight.register_hook(lambda gradient, mask=mask: gradient * mask)  # LEAK


def build(device):
    return nn.Sequential(nn.Linear(48, 96), nn.ReLU(), nn.Linear(96, 96), nn.ReLU(), nn.Linear(96, 4)).to(device)


def main():
    device = sys.argv[1]
    torch.manual_seed(43)
    torch.set_num_threads(1)
    model = build(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    pruner = Pruner(model, final_sparsity=0.8, updates=60)
    for step in range(320):
        if step % 4 == 0:
            pruner.update()
        inputs = torch.randn(24, 48, device=device)
        targets = torch.randint(0, 4, (24,), device=device)
        loss = nn.functional.cross_entropy(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"{pruner.done} updates of the masks")


if __name__ == "__main__":
    main()
