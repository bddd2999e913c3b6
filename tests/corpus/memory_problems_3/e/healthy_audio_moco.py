"""Momentum contrast on environmental sounds. The dictionary is a first-in-first-out list of key batches."""
import argparse
import collections

import torch
from torch import nn
import torch.nn.functional as F


class SpectrogramEncoder(nn.Module):
    def __init__(self, dim=1024):
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv2d(1, 32, 5, stride=2, padding=2), nn.ReLU(),
            nn.Conv2d(32, 64, 3, stride=2, padding=1), nn.ReLU(),
            nn.Conv2d(64, 128, 3, stride=2, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten())
        self.project = nn.Sequential(nn.Linear(2048, 1024), nn.ReLU(), nn.Linear(1024, dim))

    def forward(self, x):
        return F.normalize(self.project(self.conv(x)), dim=1)


class KeyQueue:
    def __init__(self, batches):
        self.batches = batches
        self.keys = collections.deque()

    def enqueue(self, keys):
        self.keys.append(keys)
        if len(self.keys) > self.batches:
            self.keys.popleft()

    def matrix(self):
        return torch.cat(tuple(self.keys))


class MoCo(nn.Module):
    def __init__(self, momentum, temperature, queue_batches):
        super().__init__()
        self.query, self.key = SpectrogramEncoder(), SpectrogramEncoder()
        self.key.load_state_dict(self.query.state_dict())
        self.key.requires_grad_(False)
        self.m, self.t = momentum, temperature
        self.queue = KeyQueue(queue_batches)

    @torch.no_grad()
    def update_key_encoder(self):
        for q, k in zip(self.query.parameters(), self.key.parameters()):
            k.lerp_(q, 1 - self.m)

    def forward(self, view1, view2):
        q = self.query(view1)
        with torch.no_grad():
            self.update_key_encoder()
            k = self.key(view2)
        positive = (q * k).sum(dim=1, keepdim=True)
        logits = [positive]
        if self.queue.keys:
            logits.append(q @ self.queue.matrix().T)
        logits = torch.cat(logits, dim=1) / self.t
        self.queue.enqueue(k)
        return F.cross_entropy(logits, torch.zeros(len(q), dtype=torch.long, device=q.device))


def augment(clip):
    start = int(torch.randint(0, clip.shape[-1] - 96, (1,)))
    view = clip[..., start:start + 96].clone()
    view[:, :, int(torch.randint(0, 60, (1,))):][:, :, :4] = 0
    return view


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=240)
    p.add_argument("--batch", type=int, default=64)
    p.add_argument("--queue", type=int, default=128, help="batches of keys in the dictionary")
    a = p.parse_args()
    torch.manual_seed(0)
    clips = torch.rand(a.batch * 4, 1, 64, 128)
    model = MoCo(0.999, 0.07, a.queue).cuda()
    opt = torch.optim.SGD(model.query.parameters(), lr=0.03, momentum=0.9, weight_decay=1e-4)
    for step in range(a.steps):
        batch = clips[torch.randint(0, len(clips), (a.batch,))]
        loss = model(augment(batch).cuda(), augment(batch).cuda())
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 40 == 0:
            print(f"step {step} loss {loss.item():.4f} dictionary {len(model.queue.keys) * a.batch} keys")


if __name__ == "__main__":
    main()
