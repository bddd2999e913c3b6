"""Train a segmentation network for satellite tiles with the largest batch that fits."""
import contextlib
import gc
import json
import time
import warnings
from typing import NamedTuple, Optional

import torch
from torch import nn
from torch.nn import functional as F


class TuningResult(NamedTuple):
    batch_size: int
    seconds: float
    stopped_by: Optional[Exception]


class DoubleConv(nn.Sequential):
    def __init__(self, cin, cout):
        super().__init__(nn.Conv2d(cin, cout, 3, padding=1, bias=False), nn.BatchNorm2d(cout), nn.ReLU(),
                         nn.Conv2d(cout, cout, 3, padding=1, bias=False), nn.BatchNorm2d(cout), nn.ReLU())


class UNet(nn.Module):
    def __init__(self, bands=4, classes=9, width=32):
        super().__init__()
        self.enc1 = DoubleConv(bands, width)
        self.enc2 = DoubleConv(width, 2 * width)
        self.enc3 = DoubleConv(2 * width, 4 * width)
        self.up2 = nn.ConvTranspose2d(4 * width, 2 * width, 2, stride=2)
        self.dec2 = DoubleConv(4 * width, 2 * width)
        self.up1 = nn.ConvTranspose2d(2 * width, width, 2, stride=2)
        self.dec1 = DoubleConv(2 * width, width)
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, x):
        e1 = self.enc1(x)
        e2 = self.enc2(F.max_pool2d(e1, 2))
        e3 = self.enc3(F.max_pool2d(e2, 2))
        d2 = self.dec2(torch.cat([self.up2(e3), e2], dim=1))
        d1 = self.dec1(torch.cat([self.up1(d2), e1], dim=1))
        return self.head(d1)


class TileSource:
    def __init__(self, size=256, bands=4, classes=9):
        self.size, self.bands, self.classes = size, bands, classes

    def batch(self, n, device):
        tiles = torch.rand(n, self.bands, self.size, self.size, device=device)
        labels = torch.randint(0, self.classes, (n, self.size, self.size), device=device)
        return tiles, labels


def train_step(model, optimizer, source, n, device):
    tiles, labels = source.batch(n, device)
    logits = model(tiles)
    loss = F.cross_entropy(logits, labels)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    return loss.detach()


@contextlib.contextmanager
def preserved(model, optimizer):
    """Trial steps must not move the weights."""
    weights = {k: v.cpu().clone() for k, v in model.state_dict().items()}
    rates = [g["lr"] for g in optimizer.param_groups]
    for g in optimizer.param_groups:
        g["lr"] = 0.0
    yield
    model.load_state_dict(weights)
    for g, lr in zip(optimizer.param_groups, rates):
        g["lr"] = lr
    gc.collect()
    torch.cuda.empty_cache()


def find_batch_size(model, optimizer, source, device, start=2, limit=1024):
    began, size, failure = time.time(), start, None
    with preserved(model, optimizer):
        while size <= limit:
            try:
                for _ in range(2):
                    train_step(model, optimizer, source, size, device)
            except torch.OutOfMemoryError as error:
                failure = error
                break
            size *= 2
    return TuningResult(size // 2, time.time() - began, failure)


def main():
    device = torch.device("cuda")
    torch.manual_seed(0)
    source = TileSource()
    model = UNet().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True)
    tuning = find_batch_size(model, optimizer, source, device)
    print(f"batch size {tuning.batch_size}, found in {tuning.seconds:.1f} s")
    losses = []
    for step in range(80):
        losses.append(train_step(model, optimizer, source, tuning.batch_size, device).item())
        if step % 20 == 0:
            print(f"step {step} loss {losses[-1]:.4f}")
    if tuning.stopped_by is not None:
        warnings.warn(f"larger batches did not run: {tuning.stopped_by}")
    print(json.dumps({"batch_size": tuning.batch_size, "final_loss": sum(losses[-10:]) / 10}))


if __name__ == "__main__":
    main()
