"""Tissue typing of stained slides: encoder with a coarse decoder with cross entropy and an overlap term."""
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn


@dataclass
class Options:
    tile: int = 512
    batch: int = 16
    tissues: int = 96
    width: int = 24
    steps: int = 30
    overlap_weight: float = 0.5
    log_every: int = 5


class Down(nn.Module):
    def __init__(self, cin, cout):
        super().__init__()
        self.conv = nn.Conv2d(cin, cout, 3, stride=2, padding=1)
        self.norm = nn.GroupNorm(8, cout)

    def forward(self, x):
        return F.silu(self.norm(self.conv(x)))


class Up(nn.Module):
    def __init__(self, cin, skip, cout):
        super().__init__()
        self.conv = nn.Conv2d(cin + skip, cout, 3, padding=1)
        self.norm = nn.GroupNorm(8, cout)

    def forward(self, x, skip):
        x = F.interpolate(x, size=skip.shape[-2:])
        return F.silu(self.norm(self.conv(torch.cat([x, skip], dim=1))))


class TissueNet(nn.Module):
    def __init__(self, options):
        super().__init__()
        w = options.width
        self.stem = nn.Conv2d(3, w, 3, padding=1)
        self.downs = nn.ModuleList([Down(w, 2 * w), Down(2 * w, 4 * w), Down(4 * w, 8 * w)])
        self.up = Up(8 * w, 4 * w, 4 * w)
        self.classify = nn.Conv2d(4 * w, options.tissues, 1)

    def forward(self, image):
        x = self.stem(image)
        for down in self.downs:
            skip, x = x, down(x)
        return self.classify(self.up(x, skip))


class OverlapLoss(nn.Module):
    """Soft Dice with the share of each class in the cells of the coarse output."""

    def __init__(self, classes, smooth=1.0):
        super().__init__()
        self.classes = classes
        self.smooth = smooth

    def forward(self, logits, labels):
        target = F.one_hot(labels, self.classes).permute(0, 3, 1, 2).float()
        target = F.adaptive_avg_pool2d(target, logits.shape[-2:])
        probability = logits.softmax(dim=1)
        dims = (0, 2, 3)
        together = (probability * target).sum(dims)
        total = probability.sum(dims) + target.sum(dims)
        return 1 - ((2 * together + self.smooth) / (total + self.smooth)).mean()


class SlideTiles:
    def __init__(self, options, seed=5):
        self.options = options
        self.generator = torch.Generator().manual_seed(seed)

    def draw(self):
        o = self.options
        coarse = torch.randint(0, o.tissues, (o.batch, 1, 8, 8), generator=self.generator).float()
        labels = F.interpolate(coarse, size=(o.tile, o.tile)).squeeze(1).long()
        image = torch.rand(o.batch, 3, 1, 1, generator=self.generator).expand(-1, -1, o.tile, o.tile)
        return image.contiguous(), labels


def fit(options, device):
    net = TissueNet(options).to(device)
    overlap = OverlapLoss(options.tissues)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, nesterov=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=options.steps)
    tiles = SlideTiles(options)
    for step in range(options.steps):
        image, labels = tiles.draw()
        image, labels = image.to(device), labels.to(device)
        logits = net(image)
        loss = F.cross_entropy(logits, labels[:, ::4, ::4]) + options.overlap_weight * overlap(logits, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % options.log_every == 0:
            print(f"step {step} loss {loss.item():.4f}")
    return net


if __name__ == "__main__":
    torch.manual_seed(5)
    fit(Options(), torch.device("cuda"))
