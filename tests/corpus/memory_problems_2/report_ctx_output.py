"""Trains a network with a hand-written activation (a fused scaled swish) as torch.autograd.Function.

Report: https://github.com/pytorch/pytorch/issues/25340 ("autograd contexts not being garbage collected when assigned
        output Tensors as attributes"; fixed downstream e.g. in https://github.com/asappresearch/sru/pull/171)
Cause:  the output is stored as an attribute of ctx: output -> grad_fn -> ctx -> output is a cycle, which reference
        counts never free (and gc.collect() only in part).
Line:   ctx.result = result
Cure:   ctx.save_for_backward(x, gate, result) and read ctx.saved_tensors in backward.
"""
import torch
from torch import nn


class ScaledSwish(torch.autograd.Function):
    """y = scale * x * sigmoid(x), with the derivative written in terms of the result."""

    @staticmethod
    def forward(ctx, x, scale):
        gate = torch.sigmoid(x)
        result = x * gate * scale
        ctx.scale = scale
        ctx.gate = gate
        ctx.result = result  # CAUSE
        return result

    @staticmethod
    def backward(ctx, grad_output):
        gate = ctx.gate
        derivative = ctx.result * (1.0 - gate) + ctx.scale * gate
        return grad_output * derivative, None


class Swish(nn.Module):
    def __init__(self, scale=1.25):
        super().__init__()
        self.scale = scale

    def forward(self, x):
        return ScaledSwish.apply(x, self.scale)


class ResidualUnit(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.fc1 = nn.Linear(width, width * 2)
        self.activation = Swish()
        self.fc2 = nn.Linear(width * 2, width)

    def forward(self, x):
        return x + self.fc2(self.activation(self.fc1(self.norm(x))))


class TabularNet(nn.Module):
    def __init__(self, features, width=512, units=4, classes=10):
        super().__init__()
        self.stem = nn.Linear(features, width)
        self.units = nn.Sequential(*[ResidualUnit(width) for _ in range(units)])
        self.head = nn.Linear(width, classes)

    def forward(self, x):
        return self.head(self.units(self.stem(x)))


def batches(device, steps, batch_size, features, classes):
    generator = torch.Generator().manual_seed(3)
    for _ in range(steps):
        x = torch.randn(batch_size, features, generator=generator)
        y = torch.randint(0, classes, (batch_size,), generator=generator)
        yield x.to(device, non_blocking=True), y.to(device, non_blocking=True)


def train(model, device, steps=120, batch_size=512, features=96, classes=10):
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=steps)
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
    model.train()
    total = 0.0
    for step, (x, y) in enumerate(batches(device, steps, batch_size, features, classes), start=1):
        optimizer.zero_grad(set_to_none=True)
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
        schedule.step()
        total += loss.item()
        if step % 20 == 0:
            print(f"step {step} loss {total / step:.4f} allocated {torch.cuda.memory_allocated() / 2**20:.0f} MiB")


def main():
    torch.manual_seed(0)
    device = torch.device("cuda")
    model = TabularNet(features=96).to(device)
    train(model, device)
    print("max allocated", torch.cuda.max_memory_allocated() // 2**20, "MiB")


if __name__ == "__main__":
    main()
