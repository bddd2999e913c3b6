"""Distils a large captioning model into a small one; images are given as grid features."""
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn


@dataclass
class Size:
    width: int
    layers: int
    heads: int
    vocabulary: int = 24000


LARGE = Size(width=1792, layers=18, heads=28)
SMALL = Size(width=512, layers=6, heads=8)


class Block(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.heads = size.heads
        self.q = nn.Linear(size.width, size.width)
        self.kv = nn.Linear(size.width, 2 * size.width)
        self.out = nn.Linear(size.width, size.width)
        self.mlp = nn.Sequential(
            nn.LayerNorm(size.width), nn.Linear(size.width, 4 * size.width), nn.GELU(),
            nn.Linear(4 * size.width, size.width),
        )

    def forward(self, text, grid):
        memory = torch.cat([grid, text], dim=1)
        batch, length, width = text.shape
        q = self.q(text).view(batch, length, self.heads, -1).transpose(1, 2)
        k, v = self.kv(memory).view(batch, memory.shape[1], 2, self.heads, -1).permute(2, 0, 3, 1, 4)
        x = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(batch, length, width)
        text = text + self.out(x)
        return text + self.mlp(text)


class Captioner(nn.Module):
    def __init__(self, size, grid_features=1024):
        super().__init__()
        self.words = nn.Embedding(size.vocabulary, size.width)
        self.see = nn.Linear(grid_features, size.width)
        self.blocks = nn.ModuleList(Block(size) for _ in range(size.layers))
        self.norm = nn.LayerNorm(size.width)

    def forward(self, tokens, grid):
        text, grid = self.words(tokens), self.see(grid)
        for block in self.blocks:
            text = block(text, grid)
        return F.linear(self.norm(text), self.words.weight)


class Distiller:
    def __init__(self, device, temperature=2.0, mix=0.7):
        self.device = device
        self.temperature, self.mix = temperature, mix
        with device:
            self.teacher = Captioner(LARGE).eval().requires_grad_(False)
            self.student = Captioner(SMALL)
        self.optimizer = torch.optim.Adam(self.student.parameters(), lr=2e-4)

    def losses(self, tokens, grid):
        with torch.no_grad():
            wanted = (self.teacher(tokens[:, :-1], grid) / self.temperature).softmax(dim=-1)
        scores = self.student(tokens[:, :-1], grid)
        soft = F.kl_div((scores / self.temperature).log_softmax(dim=-1), wanted, reduction="batchmean")
        hard = F.cross_entropy(scores.flatten(0, 1), tokens[:, 1:].flatten())
        return self.mix * soft * self.temperature ** 2 + (1 - self.mix) * hard

    def step(self, tokens, grid):
        loss = self.losses(tokens.to(self.device), grid.to(self.device))
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        return loss.item()


def caption_batches(steps, batch_size, start_length, longest):
    for step in range(steps):
        length = start_length + (longest - start_length) * step // steps
        tokens = torch.randint(3, 24000, (batch_size, length + 1))
        yield tokens, torch.randn(batch_size, 49, 1024)


if __name__ == "__main__":
    distiller = Distiller(torch.device("cuda"))
    for name in ("teacher", "student"):
        count = sum(p.numel() for p in getattr(distiller, name).parameters())
        print(f"{name}: {count / 1e6:.0f} M parameters")
    for step, batch in enumerate(caption_batches(steps=120, batch_size=32, start_length=16, longest=64)):
        loss = distiller.step(*batch)
        if step % 20 == 0:
            print(f"step {step}: {batch[0].shape[1]} tokens, loss {loss:.3f}, "
                  f"peak {torch.cuda.max_memory_allocated() / 2**30:.2f} GiB")
