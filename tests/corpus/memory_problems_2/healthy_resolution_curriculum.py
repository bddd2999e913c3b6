"""Healthy: progressive resizing; the image size and the width of the batch follow a curriculum of five stages.

Why it may look like a leak: the peak of each stage is higher than that of the one before, till the last stage.
Why it is none: only activations grow, and they are freed at the end of each step; the schedule ends at 160 pixels.
"""
from dataclasses import dataclass

import torch
from torch import nn


@dataclass(frozen=True)
class Stage:
    size: int
    batch_size: int
    steps: int
    learning_rate: float


CURRICULUM = (
    Stage(size=48, batch_size=16, steps=30, learning_rate=1e-3),
    Stage(size=64, batch_size=16, steps=30, learning_rate=1e-3),
    Stage(size=96, batch_size=16, steps=30, learning_rate=5e-4),
    Stage(size=128, batch_size=10, steps=30, learning_rate=2e-4),
    Stage(size=160, batch_size=8, steps=30, learning_rate=1e-4),
)


class ConvBlock(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
        self.norm = nn.GroupNorm(4, outputs)

    def forward(self, x):
        return nn.functional.silu(self.norm(self.conv(x)))


class Classifier(nn.Module):
    def __init__(self, classes=100, width=24):
        super().__init__()
        self.features = nn.Sequential(
            ConvBlock(3, width, 1), ConvBlock(width, 2 * width, 2), ConvBlock(2 * width, 4 * width, 2),
            ConvBlock(4 * width, 4 * width, 2),
        )
        self.head = nn.Linear(4 * width, classes)

    def forward(self, images):
        return self.head(self.features(images).mean(dim=(2, 3)))


class Mixup:
    def __init__(self, classes, alpha=0.2):
        self.classes = classes
        self.beta = torch.distributions.Beta(alpha, alpha)

    def __call__(self, images, labels):
        weight = self.beta.sample().item()
        targets = nn.functional.one_hot(labels, self.classes).float()
        images = weight * images + (1 - weight) * images.roll(1, dims=0)
        targets = weight * targets + (1 - weight) * targets.roll(1, dims=0)
        return images, targets


class CurriculumTrainer:
    def __init__(self, device, classes=100):
        self.device = device
        self.classes = classes
        self.model = Classifier(classes).to(device)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3, momentum=0.9, nesterov=True)
        self.mixup = Mixup(classes)
        self.history = []

    def images(self, stage):
        images = torch.rand(stage.batch_size, 3, stage.size, stage.size)
        labels = torch.randint(0, self.classes, (stage.batch_size,))
        return self.mixup(images.to(self.device), labels.to(self.device))

    def run_stage(self, stage):
        for group in self.optimizer.param_groups:
            group["lr"] = stage.learning_rate
        torch.cuda.reset_peak_memory_stats()
        total = 0.0
        for _ in range(stage.steps):
            images, targets = self.images(stage)
            loss = nn.functional.cross_entropy(self.model(images), targets)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            total += loss.item()
        peak = torch.cuda.max_memory_allocated()
        self.history.append({"size": stage.size, "loss": total / stage.steps, "peak": peak})
        return self.history[-1]

    def fit(self, curriculum):
        for number, stage in enumerate(curriculum):
            result = self.run_stage(stage)
            print(f"stage {number}: {result['size']} pixels, loss {result['loss']:.4f}, "
                  f"peak {result['peak'] / 2**20:.0f} MiB")


def main():
    torch.manual_seed(0)
    trainer = CurriculumTrainer(torch.device("cuda"))
    trainer.fit(CURRICULUM)
    print("max allocated", torch.cuda.max_memory_allocated() // 2**20, "MiB")


if __name__ == "__main__":
    main()
