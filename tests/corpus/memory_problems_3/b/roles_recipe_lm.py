"""A small language model for recipes, with its output layer tied to the embedding."""
from dataclasses import dataclass
import math

import torch
from torch import nn
import torch.nn.functional as F


@dataclass
class Shape:
    vocabulary: int = 24_000
    width: int = 768
    heads: int = 12
    depth: int = 6
    context: int = 512
    batch: int = 8
    steps: int = 60


class Layer(nn.Module):
    def __init__(self, shape):
        super().__init__()
        w = shape.width
        self.heads = shape.heads
        self.n1, self.n2 = nn.LayerNorm(w), nn.LayerNorm(w)
        self.qkv, self.out = nn.Linear(w, 3 * w), nn.Linear(w, w)
        self.up, self.down = nn.Linear(w, 4 * w), nn.Linear(4 * w, w)
        mask = torch.full((shape.context, shape.context), float("-inf")).triu(1)
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, x):
        b, t, w = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-1, -2) / math.sqrt(w // self.heads) + self.mask[:t, :t]
        x = x + self.out((scores.softmax(dim=-1) @ v).transpose(1, 2).reshape(b, t, w))
        return x + self.down(F.gelu(self.up(self.n2(x))))


class RecipeLM(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.tokens = nn.Embedding(shape.vocabulary, shape.width)
        self.positions = nn.Parameter(torch.zeros(shape.context, shape.width))
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.depth))
        self.norm = nn.LayerNorm(shape.width)
        self.head = nn.Linear(shape.width, shape.vocabulary, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, ids):
        x = self.tokens(ids) + self.positions[: ids.shape[1]]
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def pages(shape):
    generator = torch.Generator().manual_seed(9)
    for _ in range(shape.steps):
        ids = torch.randint(0, shape.vocabulary, (shape.batch, shape.context + 1), generator=generator)
        yield ids[:, :-1], ids[:, 1:]


def train(shape):
    model = RecipeLM(shape).cuda()
    decay = [p for p in model.parameters() if p.dim() > 1]
    rest = [p for p in model.parameters() if p.dim() <= 1]
    optimizer = torch.optim.AdamW([{"params": decay, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}],
                                  lr=3e-4, betas=(0.9, 0.95), foreach=True)
    for number, (ids, following) in enumerate(pages(shape), 1):
        logits = model(ids.cuda())
        loss = F.cross_entropy(logits.flatten(0, 1), following.cuda().flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if number % 20 == 0:
            print(f"page {number} loss {loss.item():.3f}", flush=True)
    return model


if __name__ == "__main__":
    torch.manual_seed(9)
    train(Shape())
