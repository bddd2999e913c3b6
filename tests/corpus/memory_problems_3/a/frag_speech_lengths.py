"""Trains a speech encoder with CTC; batches are drawn at random from a corpus of utterances."""
import random

import torch
import torch.nn.functional as F
from torch import nn


class Corpus:
    """Utterances from one to forty seconds; most are short."""

    def __init__(self, utterances=4000, seed=11):
        rng = random.Random(seed)
        self.frames = [int(100 * min(40.0, 1.0 + rng.expovariate(1 / 9.0))) for _ in range(utterances)]

    def batches(self, batch_size, seed):
        order = list(range(len(self.frames)))
        random.Random(seed).shuffle(order)
        for start in range(0, len(order) - batch_size + 1, batch_size):
            yield [self.frames[index] for index in order[start:start + batch_size]]


def collate(frames):
    longest = max(frames)
    features = torch.zeros(len(frames), longest, 80)
    targets = torch.randint(1, 500, (len(frames), max(1, longest // 16)))
    return features, targets


class ConvolutionModule(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.expand = nn.Linear(width, 2 * width)
        self.depthwise = nn.Conv1d(width, width, 15, padding=7, groups=width)
        self.project = nn.Linear(width, width)

    def forward(self, x):
        x = F.glu(self.expand(self.norm(x)), dim=-1)
        return self.project(F.silu(self.depthwise(x.transpose(1, 2)).transpose(1, 2)))


class EncoderLayer(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.convolution = ConvolutionModule(width)
        self.feed = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.SiLU(), nn.Linear(4 * width, width))

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        scores = (q @ k.transpose(-1, -2) / (width // self.heads) ** 0.5).softmax(dim=-1)
        x = x + self.out((scores @ v).transpose(1, 2).reshape(batch, length, width))
        x = x + self.convolution(x)
        return x + self.feed(x)


class SpeechEncoder(nn.Module):
    def __init__(self, width=256, heads=4, layers=8, symbols=500):
        super().__init__()
        self.subsample = nn.Sequential(
            nn.Conv1d(80, width, 3, stride=2, padding=1), nn.ReLU(), nn.Conv1d(width, width, 3, stride=2, padding=1)
        )
        self.layers = nn.Sequential(*[EncoderLayer(width, heads) for _ in range(layers)])
        self.symbols = nn.Linear(width, symbols)

    def forward(self, features):
        x = self.subsample(features.transpose(1, 2)).transpose(1, 2)
        return self.symbols(self.layers(x)).log_softmax(dim=-1)


def loss_of(model, features, targets):
    scores = model(features)
    length = scores.shape[1]
    index = targets.repeat_interleave(length // targets.shape[1] + 1, dim=1)[:, :length]
    return F.nll_loss(scores.flatten(0, 1), index.flatten())


def train(steps=200, batch_size=16):
    device = torch.device("cuda")
    corpus = Corpus()
    model = SpeechEncoder().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4)
    for step, frames in enumerate(corpus.batches(batch_size, seed=3)):
        if step == steps:
            break
        features, targets = collate(frames)
        loss = loss_of(model, features.to(device), targets.to(device))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        if step % 25 == 0:
            print(f"step {step}: longest {max(frames)} frames, loss {loss.item():.3f}, allocated at most "
                  f"{torch.cuda.max_memory_allocated() >> 20}, reserved {torch.cuda.memory_reserved() >> 20} MiB")


if __name__ == "__main__":
    train()
