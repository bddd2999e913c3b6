"""An activation with a backward of its own, which packs what it saves. Instead of `ctx` it uses a stash of the class.

Backward takes its entry out again. Evaluation runs no backward, so its entries stay.
"""

import itertools
import sys

import torch
from torch import nn


class PackedGelu(torch.autograd.Function):
    stash = {}  # noqa: RUF012
    numbers = itertools.count()

    @staticmethod
    def forward(ctx, x):
        ctx.number = next(PackedGelu.numbers)
        PackedGelu.stash[ctx.number] = x.to(torch.float16)  # LEAK
        return nn.functional.gelu(x)

    @staticmethod
    def backward(ctx, gradient):
        x = PackedGelu.stash.pop(ctx.number).float()
        cdf = 0.5 * (1 + torch.erf(x / 2**0.5))
        return gradient * (cdf + x * torch.exp(-0.5 * x * x) / 2.5066)


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.down(PackedGelu.apply(self.up(x)))  # LEAK


@torch.no_grad()
def evaluate(model, device):
    total = torch.zeros((), device=device)
    for _ in range(4):
        inputs = torch.randn(32, 32, device=device)
        total += (model(inputs) - inputs).square().mean()  # LEAK
    return total / 4


def main():
    device = sys.argv[1]
    torch.manual_seed(42)
    torch.set_num_threads(1)
    model = nn.Sequential(Block(32), Block(32)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(300):
        inputs = torch.randn(32, 32, device=device)
        loss = (model(inputs) - inputs.roll(1, dims=1)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 15 == 14:
            evaluate(model, device)
    print(f"{len(PackedGelu.stash)} entries in the stash")


if __name__ == "__main__":
    main()
