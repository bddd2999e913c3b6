"""Random search over the settings of a segmentation network; combinations that cannot be trained are noted and skipped."""
import random
from dataclasses import dataclass, field
from typing import Optional

import torch
from torch import nn


def double_conv(inputs, outputs):
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU(),
        nn.Conv2d(outputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU(),
    )


class UNet(nn.Module):
    def __init__(self, width, depth, classes=6):
        super().__init__()
        widths = [width * 2**level for level in range(depth)]
        self.down = nn.ModuleList(double_conv(i, o) for i, o in zip([3] + widths[:-1], widths))
        self.up = nn.ModuleList(nn.ConvTranspose2d(o, i, 2, stride=2) for i, o in zip(widths[:-1], widths[1:]))
        self.merge = nn.ModuleList(double_conv(2 * w, w) for w in widths[:-1])
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, images):
        skips, x = [], images
        for level, block in enumerate(self.down):
            x = block(x if level == 0 else nn.functional.max_pool2d(x, 2))
            skips.append(x)
        skips.pop()
        for up, merge in zip(reversed(self.up), reversed(self.merge)):
            x = merge(torch.cat([skips.pop(), up(x)], dim=1))
        return self.head(x)


@dataclass
class Trial:
    settings: dict
    score: Optional[float] = None
    error: Optional[Exception] = None


@dataclass
class Study:
    seed: int = 0
    trials: list = field(default_factory=list)

    def __post_init__(self):
        self.random = random.Random(self.seed)

    def suggest(self):
        return {
            "crop": self.random.choice([160, 180, 192, 200, 224, 250, 256]),
            "width": self.random.choice([16, 24, 32]),
            "depth": self.random.choice([4, 5]),
            "batch_size": self.random.choice([4, 8]),
            "learning_rate": 10 ** self.random.uniform(-4, -2),
        }

    def optimize(self, objective, n_trials):
        for number in range(n_trials):
            trial = Trial(self.suggest())
            try:
                trial.score = objective(trial.settings)
            except RuntimeError as error:
                trial.error = error
            self.trials.append(trial)
            self.report(number, trial)

    def report(self, number, trial):
        outcome = f"score {trial.score:.4f}" if trial.error is None else f"failed ({str(trial.error)[:60]}...)"
        print(f"trial {number}: {trial.settings['crop']} px, depth {trial.settings['depth']}: {outcome}, "
              f"{torch.cuda.memory_allocated() / 2**20:.0f} MiB allocated")

    @property
    def best(self):
        return min((trial for trial in self.trials if trial.score is not None), key=lambda trial: trial.score)


def sample_batch(settings):
    size = settings["crop"]
    images = torch.rand(settings["batch_size"], 3, size, size)
    masks = torch.randint(0, 6, (settings["batch_size"], size, size))
    return images.cuda(), masks.cuda()


def train_and_score(settings, steps=12):
    model = UNet(settings["width"], settings["depth"]).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=settings["learning_rate"])
    total = 0.0
    for _ in range(steps):
        images, masks = sample_batch(settings)
        loss = nn.functional.cross_entropy(model(images), masks)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()
    return total / steps


def main():
    torch.manual_seed(0)
    study = Study(seed=3)
    study.optimize(train_and_score, n_trials=24)
    failed = sum(trial.error is not None for trial in study.trials)
    print(f"{len(study.trials)} trials, {failed} failed; best: {study.best.settings}")


if __name__ == "__main__":
    main()
