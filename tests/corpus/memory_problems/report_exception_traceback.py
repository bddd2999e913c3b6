"""Kind of report: "memory is not freed after a caught CUDA out of memory error" (PyTorch issues; batch size finders).

True cause: the caught exception is kept, its traceback refers to the frames of the failed attempt, and their locals are
the batch and the activations made up to the failure; so the next, smaller attempt finds a full device too.
The line: `self.failures[batch_size] = error`.
Cure: keep str(error) only (or clear error.__traceback__), and retry outside of the except block.
"""

import torch
from torch import nn


class DenseNet(nn.Module):
    def __init__(self, width=1024, layers=24):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))

    def forward(self, x):
        features = []
        for layer in self.layers:
            x = torch.relu(layer(x))
            features.append(x)
        return torch.stack([f.mean() for f in features]).sum()


class BatchSizeFinder:
    """Halves the batch until a training step goes through."""

    def __init__(self, model, start, smallest=1):
        self.model = model
        self.start, self.smallest = start, smallest
        self.failures = {}

    def attempt(self, batch_size):
        batch = torch.zeros(batch_size, 1024, device="cuda")
        loss = self.model(batch)
        loss.backward()
        self.model.zero_grad(set_to_none=True)

    def find(self):
        batch_size = self.start
        while batch_size >= self.smallest:
            try:
                self.attempt(batch_size)
                return batch_size
            except torch.cuda.OutOfMemoryError as error:
                self.failures[batch_size] = error  # CAUSE
                torch.cuda.empty_cache()
            batch_size //= 2
        return None

    def report(self):
        for batch_size, error in self.failures.items():
            print(f"batch {batch_size}: {str(error).splitlines()[0][:70]}")


def main():
    torch.manual_seed(24)
    model = DenseNet().cuda()
    finder = BatchSizeFinder(model, start=131072)
    best = finder.find()
    finder.report()
    print("largest batch that fits:", best, flush=True)
    if best is None:
        return
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(100):
        loss = model(torch.randn(min(best, 64), 1024).cuda())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
