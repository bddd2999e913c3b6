"""Continual learning on a sequence of tasks; a reservoir of old examples is mixed into each batch."""
import random

import torch
from torch import nn


class Reservoir:
    """Uniform sample of everything seen, of a fixed size."""

    def __init__(self, size, rng):
        self.size = size
        self.rng = rng
        self.seen = 0
        self.items = []

    def offer(self, images, labels):
        for image, label in zip(images, labels):
            self.seen += 1
            if len(self.items) < self.size:
                self.items.append((image.clone(), label.clone()))
            elif (slot := self.rng.randrange(self.seen)) < self.size:
                self.items[slot] = (image.clone(), label.clone())

    def sample(self, count):
        chosen = self.rng.sample(self.items, min(count, len(self.items)))
        images, labels = zip(*chosen)
        return torch.stack(images), torch.stack(labels)


class Network(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 48, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(48, 96, 3, stride=2, padding=1), nn.ReLU(),
            nn.AdaptiveAvgPool2d(4), nn.Flatten(),
        )
        self.head = nn.Linear(96 * 16, classes)

    def forward(self, x):
        return self.head(self.body(x))


def task_stream(tasks, batches, batch_size, classes_per_task):
    for task in range(tasks):
        for _ in range(batches):
            images = torch.zeros(batch_size, 3, 96, 96)
            labels = torch.randint(task * classes_per_task, (task + 1) * classes_per_task, (batch_size,))
            yield task, images, labels


def main():
    rng = random.Random(0)
    reservoir = Reservoir(1500, rng)
    model = Network(classes=60).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.03, momentum=0.9)
    current = -1
    for number, (task, images, labels) in enumerate(task_stream(6, 60, 32, 10)):
        if task != current:
            current = task
            print(f"task {task}: {len(reservoir.items)} examples kept, {torch.cuda.memory_allocated() >> 20} MiB")
        images, labels = images.cuda(), labels.cuda()
        mixed_images, mixed_labels = images, labels
        if reservoir.items:
            old_images, old_labels = reservoir.sample(32)
            mixed_images, mixed_labels = torch.cat([images, old_images]), torch.cat([labels, old_labels])
        loss = nn.functional.cross_entropy(model(mixed_images), mixed_labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        reservoir.offer(images[:16], labels[:16])
    print(f"end: {reservoir.seen} offered, {len(reservoir.items)} kept, {torch.cuda.memory_allocated() >> 20} MiB")


if __name__ == "__main__":
    main()
