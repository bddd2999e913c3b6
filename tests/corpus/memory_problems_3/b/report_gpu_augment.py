"""Self-supervised pretraining of a plankton classifier, with all augmentation on the GPU."""
import argparse

import torch
from torch import nn
from torch.nn import functional as F

import gpu_augment as A


class Encoder(nn.Module):
    def __init__(self, dim=128):
        super().__init__()
        widths = [3, 16, 32, 64, 128]
        layers = []
        for a, b in zip(widths[:-1], widths[1:]):
            layers += [nn.Conv2d(a, b, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(b), nn.ReLU(inplace=True)]
        self.features = nn.Sequential(*layers)
        self.project = nn.Sequential(nn.Linear(128, 256), nn.ReLU(inplace=True), nn.Linear(256, dim))

    def forward(self, x):
        return F.normalize(self.project(self.features(x).mean(dim=(2, 3))), dim=-1)


def augmentations():
    """Two different policies, as in BYOL."""
    first = nn.Sequential(A.HorizontalFlip(), A.VerticalFlip(), A.Rotation(90), A.Jitter(0.4), A.Blur(p=1.0))
    second = nn.Sequential(A.HorizontalFlip(), A.Rotation(180), A.Jitter(0.4), A.Grayscale(p=0.2), A.Blur(p=0.1),
                           A.Erase(p=0.3))
    return first, second


def nt_xent(a, b, temperature=0.1):
    logits = a @ b.t() / temperature
    labels = torch.arange(a.shape[0], device=a.device)
    return (F.cross_entropy(logits, labels) + F.cross_entropy(logits.t(), labels)) / 2


class PlanktonLoader:
    """Decoded images come as bytes; they become floats on the GPU."""

    def __init__(self, steps, batch, size):
        self.steps = steps
        self.batch = batch
        self.size = size
        self.staging = torch.zeros(batch, 3, size, size, dtype=torch.uint8)

    def __len__(self):
        return self.steps

    def __iter__(self):
        for _ in range(self.steps):
            self.staging[:, :, ::64, ::64].random_(0, 256)
            yield self.staging.to("cuda", non_blocking=True).float().div_(255)


def train(args):
    torch.manual_seed(0)
    encoder = Encoder().cuda()
    optimizer = torch.optim.SGD(encoder.parameters(), lr=0.3, momentum=0.9)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.epochs * args.steps)
    view_a, view_b = augmentations()
    for epoch in range(args.epochs):
        running = 0.0
        for images in PlanktonLoader(args.steps, args.batch, args.size):
            with torch.no_grad():
                a, b = view_a(images), view_b(images)
            del images
            loss = nt_xent(encoder(a), encoder(b))
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            schedule.step()
            running += loss.item()
            del a, b
        print(f"epoch {epoch}: loss {running / args.steps:.3f}, "
              f"peak {torch.cuda.max_memory_allocated() / 2**30:.2f} GiB, "
              f"between steps {torch.cuda.memory_allocated() / 2**30:.2f} GiB")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--batch", type=int, default=192)
    parser.add_argument("--size", type=int, default=256)
    train(parser.parse_args())
