"""Trains a land-cover segmenter; after each epoch the validation set is scored with a precision-recall metric.

Report: https://github.com/NRCan/geo-deep-learning/issues/582 ("Torchmetrics memory leaks causing OOMs") and
        https://github.com/Lightning-AI/torchmetrics/issues/1949
Cause:  the metric keeps all predictions and targets in lists on the GPU, and reset() is never called between epochs.
Line:   self.preds.append(preds.detach())
Cure:   call the metric's reset() at the end of each validation (after compute()).
"""
from dataclasses import dataclass

import torch
from torch import nn


@dataclass
class Config:
    classes: int = 5
    bands: int = 4
    patch: int = 96
    batch_size: int = 8
    epochs: int = 12
    train_batches: int = 8
    valid_batches: int = 12


class PrecisionRecallCurve:
    """Multi-class curve without binning: the state is everything that was seen."""

    def __init__(self, classes, points=64):
        self.classes = classes
        self.points = points
        self.reset()

    def reset(self):
        self.preds = []
        self.target = []

    def update(self, preds, target):
        self.preds.append(preds.detach())  # CAUSE
        self.target.append(target)

    def compute(self):
        curves = []
        count = sum(preds.numel() // self.classes for preds in self.preds)
        for threshold in torch.linspace(0, 1, self.points).tolist()[:: self.points // 8]:
            hits = torch.zeros(self.classes, device=self.preds[0].device)
            for preds in self.preds:
                hits += (preds > threshold).float().sum(dim=(0, 2, 3))
            curves.append(hits / count)
        return torch.stack(curves)


class Segmenter(nn.Module):
    def __init__(self, bands, classes, width=32):
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(bands, width, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
                                  nn.Conv2d(width, 2 * width, 3, padding=1), nn.ReLU())
        self.up = nn.Sequential(nn.Upsample(scale_factor=2), nn.Conv2d(2 * width, width, 3, padding=1), nn.ReLU())
        self.classify = nn.Conv2d(width, classes, 1)

    def forward(self, images):
        return self.classify(self.up(self.down(images)))


class SegmentationTask:
    def __init__(self, config, device):
        self.config = config
        self.device = device
        self.model = Segmenter(config.bands, config.classes).to(device)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3)
        self.criterion = nn.CrossEntropyLoss()
        self.valid_curve = PrecisionRecallCurve(config.classes)

    def patches(self, count):
        c = self.config
        for _ in range(count):
            images = torch.rand(c.batch_size, c.bands, c.patch, c.patch)
            labels = torch.randint(0, c.classes, (c.batch_size, c.patch, c.patch))
            yield images.to(self.device), labels.to(self.device)

    def train_epoch(self):
        self.model.train()
        for images, labels in self.patches(self.config.train_batches):
            loss = self.criterion(self.model(images), labels)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
        return loss.item()

    @torch.no_grad()
    def validate(self):
        self.model.eval()
        for images, labels in self.patches(self.config.valid_batches):
            probabilities = self.model(images).softmax(dim=1)
            self.valid_curve.update(probabilities, labels)
        return self.valid_curve.compute().mean().item()

    def fit(self):
        for epoch in range(self.config.epochs):
            loss = self.train_epoch()
            score = self.validate()
            print(f"epoch {epoch}: loss {loss:.4f} curve {score:.4f} {torch.cuda.memory_allocated() / 2**20:.0f} MiB")


def main():
    torch.manual_seed(0)
    SegmentationTask(Config(), torch.device("cuda")).fit()
    print("max allocated", torch.cuda.max_memory_allocated() // 2**20, "MiB")


if __name__ == "__main__":
    main()
