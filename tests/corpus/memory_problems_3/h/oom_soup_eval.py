"""Score weight-space interpolations of a fine-tuned ViT against its base ("model soup" sweep)."""
import copy
import sys
import time

import torch
import torch.nn.functional as F
from torch import nn


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.ln1 = nn.LayerNorm(dim)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)
        self.ln2 = nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.qkv(self.ln1(x)).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, d)
        x = x + self.proj(y)
        return x + self.mlp(self.ln2(x))


class ViT(nn.Module):
    def __init__(self, dim=1024, depth=14, heads=16, patch=16, size=224, classes=1000):
        super().__init__()
        self.patch = nn.Conv2d(3, dim, patch, patch)
        self.pos = nn.Parameter(torch.zeros(1, (size // patch) ** 2, dim))
        self.blocks = nn.Sequential(*[Block(dim, heads) for _ in range(depth)])
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, classes)

    def forward(self, images):
        x = self.patch(images).flatten(2).transpose(1, 2) + self.pos
        return self.head(self.norm(self.blocks(x)).mean(1))


class ValidationSet:
    def __init__(self, device, batches=4, batch_size=32):
        self.images = torch.rand(batches, batch_size, 3, 224, 224, device=device)
        self.labels = torch.randint(0, 1000, (batches, batch_size), device=device)

    def __iter__(self):
        return zip(self.images, self.labels)

    def __len__(self):
        return self.labels.numel()


def interpolate(base, tuned, alpha, skip_norms):
    """Return base + alpha * (tuned - base) as a stand-alone model."""
    model = copy.deepcopy(base)
    target = dict(tuned.named_parameters())
    for name, param in model.named_parameters():
        if skip_norms and ("ln" in name or "norm" in name):
            continue
        param.lerp_(target[name], alpha)
    return model


def accuracy(model, data):
    correct = torch.zeros((), device=data.labels.device)
    for images, labels in data:
        correct += (model(images).argmax(-1) == labels).sum()
    return correct.item() / len(data)


def sweep(base, tuned, data, grid):
    table = []
    with torch.no_grad(), torch.autocast(data.images.device.type, dtype=torch.bfloat16):
        for alpha, skip_norms in grid:
            started = time.perf_counter()
            candidate = interpolate(base, tuned, alpha, skip_norms).eval()
            score = accuracy(candidate, data)
            del candidate
            table.append({"alpha": alpha, "skip_norms": skip_norms, "accuracy": score})
            print(f"alpha={alpha:.3f} skip_norms={skip_norms!s:5} "
                  f"acc={score:.4f} ({time.perf_counter() - started:.2f}s)", flush=True)
    return table


def main():
    device = torch.device(sys.argv[1] if len(sys.argv) > 1 else "cuda")
    torch.manual_seed(0)
    with device:
        base = ViT()
        tuned = ViT()
    data = ValidationSet(device)
    grid = [(a / 20, skip) for skip in (False, True) for a in range(21)]
    table = sweep(base, tuned, data, grid)
    best = max(table, key=lambda row: row["accuracy"])
    print("best:", best)
    winner = interpolate(base.requires_grad_(False), tuned.requires_grad_(False),
                         best["alpha"], best["skip_norms"])
    print("parameters in the soup:", sum(p.numel() for p in winner.parameters()))


if __name__ == "__main__":
    main()
