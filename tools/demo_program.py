"""Training of a small transformer to continue sequences, with a leak that is common in training loops."""

from __future__ import annotations

import argparse

import torch
from torch import nn
from torch.nn import functional

VOCABULARY = 256
LENGTH = 48
BATCH = 16


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.project = nn.Linear(width, width)
        self.feed_forward = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = (
            part.view(batch, length, self.heads, width // self.heads).transpose(1, 2)
            for part in self.qkv(self.norm1(x)).chunk(3, dim=-1)
        )
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.project(attended.transpose(1, 2).reshape(batch, length, width))
        return x + self.feed_forward(self.norm2(x))


class Model(nn.Module):
    def __init__(self, width: int = 128, heads: int = 4, blocks: int = 3) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, width)
        self.positions = nn.Parameter(torch.zeros(LENGTH, width))
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(blocks))
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens) + self.positions
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def batch_of_sequences(generator: torch.Generator) -> torch.Tensor:
    start = torch.randint(VOCABULARY, (BATCH, 1), generator=generator)
    stride = torch.randint(1, 8, (BATCH, 1), generator=generator)
    return (start + stride * torch.arange(LENGTH + 1)) % VOCABULARY


class Trainer:
    def __init__(self, device: str) -> None:
        torch.manual_seed(0)
        self.device = device
        self.model = Model().to(device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-3)
        self.predictions: list[torch.Tensor] = []

    def step(self, sequences: torch.Tensor) -> float:
        self.optimizer.zero_grad()
        logits = self.model(sequences[:, :-1])
        loss = functional.cross_entropy(logits.flatten(0, 1), sequences[:, 1:].flatten())
        loss.backward()
        self.optimizer.step()
        # The leak: the predictions of every step are kept, though the accuracy needs those of the last step only.
        self.predictions.append(logits.softmax(dim=-1))
        return loss.item()

    def train(self, steps: int) -> None:
        generator = torch.Generator().manual_seed(0)
        for step in range(1, steps + 1):
            sequences = batch_of_sequences(generator).to(self.device)
            loss = self.step(sequences)
            if step % 10 == 0:
                right = self.predictions[-1].argmax(dim=-1) == sequences[:, 1:]
                print(f"step {step}: loss {loss:.3f}, accuracy {right.float().mean().item():.0%}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=60)
    torch.set_num_threads(1)  # more threads do not speed up a model this small, and slow it on a busy machine
    trainer = Trainer("cuda" if torch.cuda.is_available() else "cpu")
    trainer.train(parser.parse_args().steps)
