"""Adapts a protein language model to predict the melting point of enzymes."""
import sys

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

ALPHABET = "ACDEFGHIKLMNPQRSTVWY"


class EncoderLayer(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.output = nn.Linear(width, width)
        self.intermediate = nn.Linear(width, 4 * width)
        self.reduce = nn.Linear(4 * width, width)

    def forward(self, x):
        b, n, w = x.shape
        h = self.norm1(x)
        q, k, v = (f(h).reshape(b, n, self.heads, -1).transpose(1, 2)
                   for f in (self.query, self.key, self.value))
        h = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, w)
        x = x + self.output(h)
        return x + self.reduce(F.gelu(self.intermediate(self.norm2(x))))


class ProteinEncoder(nn.Module):
    def __init__(self, width=1024, depth=14, heads=16, length=256):
        super().__init__()
        self.residues = nn.Embedding(len(ALPHABET) + 1, width, padding_idx=0)
        self.position = nn.Embedding(length, width)
        self.layers = nn.ModuleList(EncoderLayer(width, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(width)

    def forward(self, tokens):
        x = self.residues(tokens) + self.position.weight[: tokens.shape[1]]
        for layer in self.layers:
            x = layer(x)
        return self.norm(x).mean(1)


class DirectionalAdapter(nn.Module):
    """Weight-decomposed low-rank update: a magnitude per row times a direction."""

    def __init__(self, base, rank, alpha):
        super().__init__()
        self.base = base
        self.scaling = alpha / rank
        self.lora_A = nn.Parameter(torch.randn(rank, base.in_features) / rank)
        self.lora_B = nn.Parameter(torch.zeros(base.out_features, rank))
        self.magnitude = nn.Parameter(base.weight.detach().norm(dim=1))

    def weight_norm(self):
        update = self.lora_B @ self.lora_A
        return torch.linalg.norm(self.base.weight + self.scaling * update, dim=1)

    def forward(self, x):
        direction = F.linear(x, self.base.weight)
        direction = direction + self.scaling * F.linear(F.linear(x, self.lora_A), self.lora_B)
        return direction * (self.magnitude / self.weight_norm()) + self.base.bias


def adapt(encoder, rank=8, alpha=16.0):
    encoder.requires_grad_(False)
    for layer in encoder.layers:
        for name in ("query", "key", "value", "output", "intermediate", "reduce"):
            setattr(layer, name, DirectionalAdapter(getattr(layer, name), rank, alpha))
    return encoder


class StabilityModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = adapt(ProteinEncoder())
        self.readout = nn.Sequential(nn.Linear(1024, 128), nn.GELU(), nn.Linear(128, 1))

    def forward(self, tokens):
        return self.readout(self.encoder(tokens)).squeeze(-1)


def enzymes(count, rng, length=128):
    tokens = rng.integers(1, len(ALPHABET) + 1, size=(count, length))
    melting = 45 + 25 * rng.random(count)
    return torch.from_numpy(tokens), torch.from_numpy(melting.astype(np.float32))


def run_epoch(model, optimizer, tokens, melting, device, batch=4):
    total = 0.0
    for start in range(0, len(tokens), batch):
        x = tokens[start:start + batch].to(device)
        y = (melting[start:start + batch].to(device) - 57.5) / 12.5
        loss = F.huber_loss(model(x), y)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        total += loss.item()
    return total / (len(tokens) / batch)


def main():
    device = torch.device(sys.argv[1] if len(sys.argv) > 1 else "cuda")
    torch.manual_seed(12)
    rng = np.random.default_rng(12)
    with device:
        model = StabilityModel()
    trainable = [p for p in model.parameters() if p.requires_grad]
    print(f"trainable {sum(p.numel() for p in trainable) / 1e6:.2f} M of "
          f"{sum(p.numel() for p in model.parameters()) / 1e6:.1f} M")
    optimizer = torch.optim.AdamW(trainable, lr=2e-4)
    tokens, melting = enzymes(16, rng)
    for epoch in range(3):
        loss = run_epoch(model, optimizer, tokens, melting, device)
        print(f"epoch {epoch} huber {loss:.4f}", flush=True)


if __name__ == "__main__":
    main()
