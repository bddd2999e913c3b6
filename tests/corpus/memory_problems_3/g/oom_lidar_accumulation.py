"""Classify lidar segments (cars, poles, trees, ...); the effective batch grows during training."""
import argparse
import itertools
import logging
import time

import torch
import torch.nn as nn
import torch.nn.functional as F


def shared_mlp(*widths):
    layers = []
    for cin, cout in itertools.pairwise(widths):
        layers += [nn.Linear(cin, cout), nn.LayerNorm(cout), nn.ReLU()]
    return nn.Sequential(*layers)


class PointNet(nn.Module):
    def __init__(self, in_dim=5, classes=19):
        super().__init__()
        self.local = shared_mlp(in_dim, 64, 64)
        self.deep = shared_mlp(64, 128, 512)
        self.head = nn.Sequential(nn.Linear(512, 256), nn.ReLU(), nn.Dropout(0.3), nn.Linear(256, classes))

    def forward(self, points):
        x = self.deep(self.local(points))
        return self.head(x.amax(dim=1))


class SegmentLoader:
    def __init__(self, batch_size, n_points, classes=19, seed=0):
        self.batch_size, self.n_points, self.classes = batch_size, n_points, classes
        self.gen = torch.Generator().manual_seed(seed)

    def __iter__(self):
        while True:
            xyz = torch.randn(self.batch_size, self.n_points, 3, generator=self.gen)
            xyz = xyz - xyz.mean(1, keepdim=True)
            intensity = torch.rand(self.batch_size, self.n_points, 1, generator=self.gen)
            distance = xyz.norm(dim=-1, keepdim=True)
            labels = torch.randint(0, self.classes, (self.batch_size,), generator=self.gen)
            yield torch.cat([xyz, intensity, distance], -1), labels


def accumulation(step, ramp):
    """Number of micro-batches per update."""
    return min(16, 2 ** (step // ramp))


class Learner:
    def __init__(self, model, lr, device):
        self.model = model.to(device)
        self.device = device
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=lr)

    def update(self, batches, n):
        loss = 0.0
        for points, labels in itertools.islice(batches, n):
            logits = self.model(points.to(self.device))
            loss = loss + F.cross_entropy(logits, labels.to(self.device), label_smoothing=0.1) / n
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        return loss.item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--updates", type=int, default=150)
    ap.add_argument("--micro-batch", type=int, default=96)
    ap.add_argument("--points", type=int, default=1024)
    ap.add_argument("--ramp", type=int, default=30)
    args = ap.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    torch.manual_seed(0)

    learner = Learner(PointNet(), 1e-3, torch.device("cuda"))
    batches = iter(SegmentLoader(args.micro_batch, args.points))
    start = time.time()
    for step in range(args.updates):
        n = accumulation(step, args.ramp)
        loss = learner.update(batches, n)
        if step % 10 == 0:
            logging.info("update %4d  batch %5d  loss %.4f  %.1f s", step, n * args.micro_batch, loss, time.time() - start)


if __name__ == "__main__":
    main()
