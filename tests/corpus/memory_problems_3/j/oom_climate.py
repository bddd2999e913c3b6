"""Medium-range forecast roll-out with a large transformer on one small card.

The blocks live in host memory and visit the device one after the other.
"""
import math
import sys
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

N_LAT, N_LON, PATCH = 181, 360, 6
N_VARS = 69
DIM = 1536
DEPTH = 26
HEADS = 12
STEPS = 2


class Attention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x):
        batch, tokens, dim = x.shape
        qkv = self.qkv(x).view(batch, tokens, 3, self.heads, dim // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        out = F.scaled_dot_product_attention(q, k, v)
        return self.proj(out.transpose(1, 2).reshape(batch, tokens, dim))


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.norm1 = nn.LayerNorm(dim)
        self.attn = Attention(dim, heads)
        self.norm2 = nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x):
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class ForecastModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.patchify = nn.Conv2d(N_VARS, DIM, PATCH, PATCH)
        self.blocks = nn.ModuleList(Block(DIM, HEADS) for _ in range(DEPTH))
        self.norm = nn.LayerNorm(DIM)
        self.head = nn.Linear(DIM, N_VARS * PATCH * PATCH)


def build_model():
    with torch.device("meta"):
        model = ForecastModel()
    model.to_empty(device="cpu")
    return model.eval()


class StreamedForecaster:
    """Keeps only the stem, the head and one block on the device."""

    def __init__(self, model, device):
        self.model = model
        self.device = device
        for part in (model.patchify, model.norm, model.head):
            part.to(device)

    def _run_blocks(self, tokens):
        for block in self.model.blocks:
            block.to(self.device)
            tokens = block(tokens)
            block.to("cpu")
        return tokens

    def step(self, state):
        model = self.model
        rows, cols = state.shape[-2] // PATCH, state.shape[-1] // PATCH
        tokens = model.patchify(state).flatten(2).transpose(1, 2)
        tokens = self._run_blocks(tokens)
        tendency = model.head(model.norm(tokens))
        tendency = tendency.view(-1, rows, cols, N_VARS, PATCH, PATCH)
        tendency = tendency.permute(0, 3, 1, 4, 2, 5).reshape(-1, N_VARS, rows * PATCH, cols * PATCH)
        return state + tendency.float()

    @torch.no_grad()
    def rollout(self, state, n_steps):
        fields = []
        with torch.autocast("cuda", dtype=torch.bfloat16):
            for index in range(n_steps):
                started = time.time()
                state = self.step(state)
                fields.append(state.cpu())
                print(f"  +{6 * (index + 1):3d} h done in {time.time() - started:.1f} s", flush=True)
        return fields


def latitude_weights(n_rows):
    lat = torch.linspace(-math.pi / 2, math.pi / 2, n_rows)
    weights = torch.cos(lat).clamp(min=0)
    return weights / weights.mean()


def main():
    device = torch.device(sys.argv[1] if len(sys.argv) > 1 else "cuda")
    torch.manual_seed(5)
    model = build_model()
    size = sum(p.numel() for p in model.parameters())
    print(f"forecast model: {size / 1e6:.0f} M parameters, {DEPTH} blocks", flush=True)
    forecaster = StreamedForecaster(model, device)

    analysis = torch.randn(1, N_VARS, N_LAT - 1, N_LON).to(device)
    weights = latitude_weights(N_LAT - 1).view(1, 1, -1, 1)
    for member in range(2):
        print(f"member {member}", flush=True)
        fields = forecaster.rollout(analysis + 0.01 * torch.randn_like(analysis), STEPS)
        spread = (fields[-1] * weights).abs().mean()
        print(f"member {member}: mean field {float(spread):.3f}", flush=True)


if __name__ == "__main__":
    main()
