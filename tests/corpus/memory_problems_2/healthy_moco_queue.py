"""Healthy: momentum contrast with a queue of keys that fills up during the first 128 steps.

Why it may look like a leak: the list of key batches grows with each step, and a momentum copy of the encoder is kept.
Why it is none: the queue drops its oldest batch once it has QUEUE_BATCHES; keys are computed without grad.
"""
import copy
from collections import deque

import torch
from torch import nn

QUEUE_BATCHES = 128
FEATURES = 1024


class Encoder(nn.Module):
    def __init__(self, channels=32, features=FEATURES):
        super().__init__()
        self.trunk = nn.Sequential(
            nn.Conv2d(3, channels, 3, stride=2, padding=1), nn.BatchNorm2d(channels), nn.ReLU(),
            nn.Conv2d(channels, 2 * channels, 3, stride=2, padding=1), nn.BatchNorm2d(2 * channels), nn.ReLU(),
        )
        self.project = nn.Sequential(nn.Linear(2 * channels, 512), nn.ReLU(), nn.Linear(512, features))

    def forward(self, images):
        return nn.functional.normalize(self.project(self.trunk(images).mean(dim=(2, 3))), dim=1)


class KeyQueue:
    def __init__(self, batches):
        self.batches = deque(maxlen=batches)

    def push(self, keys):
        self.batches.append(keys)

    def negatives(self):
        return torch.cat(tuple(self.batches)) if self.batches else None

    def __len__(self):
        return sum(len(keys) for keys in self.batches)


class Moco(nn.Module):
    def __init__(self, momentum=0.99, temperature=0.2):
        super().__init__()
        self.query_encoder = Encoder()
        self.key_encoder = copy.deepcopy(self.query_encoder)
        self.key_encoder.requires_grad_(False)
        self.queue = KeyQueue(QUEUE_BATCHES)
        self.momentum = momentum
        self.temperature = temperature

    @torch.no_grad()
    def update_key_encoder(self):
        for key, query in zip(self.key_encoder.parameters(), self.query_encoder.parameters()):
            key.mul_(self.momentum).add_(query, alpha=1.0 - self.momentum)

    def forward(self, view1, view2):
        queries = self.query_encoder(view1)
        with torch.no_grad():
            self.update_key_encoder()
            keys = self.key_encoder(view2)
        logits = (queries * keys).sum(dim=1, keepdim=True)
        negatives = self.queue.negatives()
        if negatives is not None:
            logits = torch.cat([logits, queries @ negatives.t()], dim=1)
        self.queue.push(keys)
        labels = torch.zeros(len(logits), dtype=torch.long, device=logits.device)
        return nn.functional.cross_entropy(logits / self.temperature, labels)


class TwoViews:
    def __init__(self, device, batch_size=64, size=24):
        self.device = device
        self.batch_size = batch_size
        self.size = size

    def augment(self, images):
        shift = int(torch.randint(-3, 4, ()))
        return images.roll(shift, dims=3) + 0.05 * torch.randn_like(images)

    def batch(self):
        images = torch.rand(self.batch_size, 3, self.size, self.size).to(self.device)
        return self.augment(images), self.augment(images)


def main(steps=220):
    torch.manual_seed(0)
    device = torch.device("cuda")
    model = Moco().to(device)
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.SGD(parameters, lr=0.03, momentum=0.9, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=steps)
    views = TwoViews(device)
    for step in range(1, steps + 1):
        view1, view2 = views.batch()
        loss = model(view1, view2)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % 40 == 0:
            print(f"step {step} loss {loss.item():.4f} queue {len(model.queue)} "
                  f"{torch.cuda.memory_allocated() / 2**20:.0f} MiB")
    print("max allocated", torch.cuda.max_memory_allocated() // 2**20, "MiB")


if __name__ == "__main__":
    main()
