"""Trains with an activation that puts its own output on `ctx`: a reference cycle, so the output outlives its step.

It has no `save_for_backward`, but the garbage collector finds the cycle: the trainer collects every 25 steps.
"""

import gc
import sys

import torch
from torch import nn


class Mish(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.x = x
        ctx.gate = torch.tanh(nn.functional.softplus(x))
        ctx.output = x * ctx.gate
        return ctx.output

    @staticmethod
    def backward(ctx, gradient):
        sech = 1 - ctx.gate.square()
        return gradient * (ctx.gate + ctx.x * sech * torch.sigmoid(ctx.x))


class Regressor(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(40, 64), nn.Linear(64, 64), nn.Linear(64, 1)])

    def forward(self, x):
        for layer in self.layers[:-1]:
            x = Mish.apply(layer(x))
        return self.layers[-1](x)


def main():
    device = sys.argv[1]
    torch.manual_seed(84)
    torch.set_num_threads(1)
    gc.disable()
    gc.freeze()
    model = Regressor().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, step / 30))
    for step in range(300):
        inputs = torch.randn(24, 40, device=device)
        loss = (model(inputs) - inputs.sum(dim=1, keepdim=True)).abs().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        if step % 25 == 24:
            gc.collect()
    gc.enable()
    print(f"last loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
