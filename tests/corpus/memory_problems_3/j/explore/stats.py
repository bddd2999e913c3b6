import torch


class RunningStats:
    """Mean and variance of a stream of batches (parallel variance)."""

    def __init__(self, device):
        self.mean = torch.zeros((), device=device)
        self.var = torch.ones((), device=device)
        self.count = 1e-4

    def update(self, batch):
        n = batch.numel()
        delta = batch.mean() - self.mean
        total = self.count + n
        m2 = self.var * self.count + batch.var(unbiased=False) * n + delta.pow(2) * self.count * n / total
        self.mean = self.mean + delta * n / total
        self.var = m2 / total
        self.count = total

    def scale(self, batch):
        return batch / (self.var.sqrt() + 1e-8)
