"""Robust accuracy of a traffic-sign classifier under iterated sign-gradient perturbations."""
import sys
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

SIGNS = 43


class SignNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 24, 5, stride=2, padding=2), nn.BatchNorm2d(24), nn.ReLU(True),
            nn.Conv2d(24, 48, 3, stride=2, padding=1), nn.BatchNorm2d(48), nn.ReLU(True),
            nn.Conv2d(48, 96, 3, stride=2, padding=1), nn.BatchNorm2d(96), nn.ReLU(True),
            nn.Conv2d(96, 192, 3, stride=2, padding=1), nn.BatchNorm2d(192), nn.ReLU(True),
        )
        self.classifier = nn.Sequential(nn.Dropout(0.3), nn.Linear(192, SIGNS))

    def forward(self, x):
        return self.classifier(self.features(x).mean((2, 3)))


class SignCrops:
    def __init__(self, count, batch_size, seed):
        self.count, self.batch_size = count, batch_size
        self.rng = np.random.default_rng(seed)

    def __iter__(self):
        for first in range(0, self.count, self.batch_size):
            n = min(self.batch_size, self.count - first)
            images = torch.full((n, 3, 256, 256), 0.5)
            yield images, torch.from_numpy(self.rng.integers(0, SIGNS, n))


class SignGradientAttack:
    def __init__(self, model, eps=8 / 255, alpha=2 / 255, steps=20):
        self.model = model
        self.eps, self.alpha, self.steps = eps, alpha, steps

    def __call__(self, images, labels):
        adv = images + torch.empty_like(images).uniform_(-self.eps, self.eps)
        adv = adv.clamp(0, 1).detach()
        for _ in range(self.steps):
            adv.requires_grad_(True)
            loss = F.cross_entropy(self.model(adv), labels)
            grad = torch.autograd.grad(loss, adv)[0]
            moved = adv.detach() + self.alpha * grad.sign()
            adv = (images + (moved - images).clamp(-self.eps, self.eps)).clamp(0, 1).detach()
        return adv


def train(model, crops, device, epochs):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    scaler = torch.amp.GradScaler(device.type)
    model.train()
    for epoch in range(epochs):
        for images, labels in crops:
            with torch.autocast(device.type, dtype=torch.float16):
                loss = F.cross_entropy(model(images.to(device)), labels.to(device))
            optimizer.zero_grad(set_to_none=True)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        print(f"epoch {epoch}: loss {loss.item():.4f}", flush=True)


class Accuracy:
    def __init__(self):
        self.correct = self.total = 0

    def update(self, logits, labels):
        self.correct += int((logits.argmax(1) == labels).sum().cpu())
        self.total += len(labels)

    def value(self):
        return self.correct / max(1, self.total)


def robust_accuracy(model, crops, device):
    model.eval().requires_grad_(False)
    attack = SignGradientAttack(model)
    clean, robust = Accuracy(), Accuracy()
    with torch.autocast(device.type, dtype=torch.float16):
        for number, (images, labels) in enumerate(crops):
            images, labels = images.to(device), labels.to(device)
            adv = attack(images, labels)
            with torch.no_grad():
                clean.update(model(images), labels)
                robust.update(model(adv), labels)
            print(f"  batch {number}: {robust.total} images attacked", flush=True)
    return clean.value(), robust.value()


def main():
    device = torch.device(sys.argv[1] if len(sys.argv) > 1 else "cuda")
    torch.manual_seed(404)
    model = SignNet().to(device)
    train(model, SignCrops(384, 96, seed=1), device, epochs=3)
    start = time.time()
    clean, robust = robust_accuracy(model, SignCrops(1536, 96, seed=2), device)
    print(f"clean {clean:.3f} robust {robust:.3f} ({time.time() - start:.1f}s)", flush=True)


if __name__ == "__main__":
    main()
