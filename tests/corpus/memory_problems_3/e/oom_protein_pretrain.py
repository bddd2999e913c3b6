import argparse
import dataclasses
import math

import torch
import torch.nn.functional as F
from torch import nn

AMINO = "ACDEFGHIKLMNPQRSTVWY"
MASK = len(AMINO)


@dataclasses.dataclass
class ModelArgs:
    dim: int = 2048
    n_layers: int = 24
    n_heads: int = 16
    vocab_size: int = 32
    max_len: int = 512


class TransformerLayer(nn.Module):
    def __init__(self, a: ModelArgs):
        super().__init__()
        self.a = a
        self.norm_attn = nn.LayerNorm(a.dim)
        self.norm_ffn = nn.LayerNorm(a.dim)
        self.in_proj = nn.Linear(a.dim, 3 * a.dim)
        self.out_proj = nn.Linear(a.dim, a.dim)
        self.fc1 = nn.Linear(a.dim, 4 * a.dim)
        self.fc2 = nn.Linear(4 * a.dim, a.dim)

    def forward(self, x):
        b, t, d = x.shape
        qkv = self.in_proj(self.norm_attn(x)).view(b, t, 3, self.a.n_heads, d // self.a.n_heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        x = x + self.out_proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, t, d))
        return x + self.fc2(F.gelu(self.fc1(self.norm_ffn(x))))


class ProteinLM(nn.Module):
    def __init__(self, a: ModelArgs):
        super().__init__()
        self.embed = nn.Embedding(a.vocab_size, a.dim)
        self.position = nn.Embedding(a.max_len, a.dim)
        self.layers = nn.ModuleList(TransformerLayer(a) for _ in range(a.n_layers))
        self.norm = nn.LayerNorm(a.dim)

    def forward(self, tokens):
        x = self.embed(tokens) + self.position(torch.arange(tokens.shape[1], device=tokens.device))
        for layer in self.layers:
            x = torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=False)
        return self.norm(x) @ self.embed.weight.T


def masked_batches(n, batch, length):
    g = torch.Generator().manual_seed(2)
    for _ in range(n):
        tokens = torch.randint(0, len(AMINO), (batch, length), generator=g)
        mask = torch.rand(tokens.shape, generator=g) < 0.15
        yield torch.where(mask, torch.full_like(tokens, MASK), tokens), torch.where(mask, tokens, -100)


def lr_at(step, peak, warmup, total):
    if step < warmup:
        return peak * (step + 1) / warmup
    return 0.5 * peak * (1 + math.cos(math.pi * (step - warmup) / max(1, total - warmup)))


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=100)
    p.add_argument("--batch", type=int, default=4)
    p.add_argument("--lr", type=float, default=4e-4)
    args = p.parse_args()

    with torch.device("cuda"):
        model = ProteinLM(ModelArgs())
    print(f"parameters: {sum(t.numel() for t in model.parameters()) / 1e9:.2f} B")
    decay = [t for t in model.parameters() if t.dim() > 1]
    other = [t for t in model.parameters() if t.dim() <= 1]
    optimizer = torch.optim.AdamW([{"params": decay, "weight_decay": 0.01}, {"params": other, "weight_decay": 0.0}],
                                  lr=args.lr, betas=(0.9, 0.98))
    for step, (tokens, targets) in enumerate(masked_batches(args.steps, args.batch, 384)):
        for group in optimizer.param_groups:
            group["lr"] = lr_at(step, args.lr, 10, args.steps)
        tokens, targets = tokens.cuda(), targets.cuda()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            logits = model(tokens)
        loss = F.cross_entropy(logits.float().flatten(0, 1), targets.flatten(), ignore_index=-100)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % 10 == 0:
            print(f"{step:5d} loss {loss.item():.3f} perplexity {math.exp(min(20, loss.item())):.2f}")


if __name__ == "__main__":
    main()
