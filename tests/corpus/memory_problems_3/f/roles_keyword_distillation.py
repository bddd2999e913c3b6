"""Distil a large keyword spotting network into one for microcontrollers."""
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F

from membook import PeakWatch, gradients, optimizer_tensors, report, storage_bytes


@dataclass(frozen=True)
class Settings:
    mels: int = 40
    frames: int = 101
    words: int = 35
    batch: int = 96
    steps: int = 20
    temperature: float = 4.0
    alpha: float = 0.7


class MixerBlock(nn.Module):
    def __init__(self, frames, dim):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.time = nn.Sequential(nn.Linear(frames, 2 * frames), nn.GELU(), nn.Linear(2 * frames, frames))
        self.feat = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))

    def forward(self, x):
        x = x + self.time(self.n1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.feat(self.n2(x))


class KeywordNet(nn.Module):
    def __init__(self, s, dim, depth):
        super().__init__()
        self.register_buffer("mean", torch.zeros(s.mels))
        self.register_buffer("std", torch.ones(s.mels))
        self.inp = nn.Linear(s.mels, dim)
        self.blocks = nn.Sequential(*(MixerBlock(s.frames, dim) for _ in range(depth)))
        self.out = nn.Linear(dim, s.words)

    def forward(self, mel):
        return self.out(self.blocks(self.inp((mel - self.mean) / self.std)).mean(1))


class Distiller:
    def __init__(self, s):
        self.s = s
        self.teacher = KeywordNet(s, dim=512, depth=8).cuda().eval().requires_grad_(False)
        self.student = KeywordNet(s, dim=96, depth=4).cuda()
        self.optimizer = torch.optim.Adam(self.student.parameters(), lr=1e-3, amsgrad=True)
        self.watch = PeakWatch()

    def loss(self, mel, words):
        with torch.no_grad():
            soft = (self.teacher(mel) / self.s.temperature).softmax(-1)
        logits = self.student(mel)
        kd = F.kl_div((logits / self.s.temperature).log_softmax(-1), soft, reduction="batchmean")
        return self.s.alpha * self.s.temperature ** 2 * kd + (1 - self.s.alpha) * F.cross_entropy(logits, words)

    def account(self, mel, words):
        models = (self.teacher, self.student)
        return {
            "parameters": storage_bytes(p for m in models for p in m.parameters()),
            "buffers": storage_bytes(b for m in models for b in m.buffers()),
            "gradients": storage_bytes(gradients(*models)),
            "optimizer state": storage_bytes(optimizer_tensors(self.optimizer)),
            "activations": 0,
            "inputs": storage_bytes([mel, words]),
        }

    def fit(self):
        sizes = None
        for step in range(1, self.s.steps + 1):
            mel = torch.randn(self.s.batch, self.s.frames, self.s.mels).cuda()
            words = torch.randint(0, self.s.words, (self.s.batch,)).cuda()
            self.optimizer.zero_grad()
            loss = self.loss(mel, words)
            self.watch.check(step, "forward")
            loss.backward()
            self.watch.check(step, "backward")
            if step == 15:
                sizes = self.account(mel, words)
            self.optimizer.step()
            self.watch.check(step, "optimizer step")
        return sizes


def main():
    torch.manual_seed(0)
    distiller = Distiller(Settings())
    report(distiller.watch, distiller.fit())


if __name__ == "__main__":
    main()
