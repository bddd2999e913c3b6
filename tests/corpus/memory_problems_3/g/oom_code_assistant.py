"""Start a code completion model and run the smoke prompts of the editor plug-in."""
import argparse
import json
import sys

import torch
import torch.nn as nn
import torch.nn.functional as F

CONFIG = {
    "vocab_size": 49152,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_layers": 40,
    "num_heads": 32,
    "num_kv_heads": 8,
    "dtype": "bfloat16",
}

PROMPTS = ["def quicksort(items):", "class LRUCache:", "SELECT name FROM", "fn main() {", "import numpy as"]


class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.h, self.kv = c["num_heads"], c["num_kv_heads"]
        self.d = c["hidden_size"] // self.h
        self.q_proj = nn.Linear(c["hidden_size"], self.h * self.d, bias=False)
        self.k_proj = nn.Linear(c["hidden_size"], self.kv * self.d, bias=False)
        self.v_proj = nn.Linear(c["hidden_size"], self.kv * self.d, bias=False)
        self.o_proj = nn.Linear(self.h * self.d, c["hidden_size"], bias=False)

    def forward(self, x):
        b, n, _ = x.shape
        q = self.q_proj(x).view(b, n, self.h, self.d).transpose(1, 2)
        k = self.k_proj(x).view(b, n, self.kv, self.d).transpose(1, 2)
        v = self.v_proj(x).view(b, n, self.kv, self.d).transpose(1, 2)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.o_proj(y.transpose(1, 2).reshape(b, n, -1))


class FeedForward(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.gate_proj = nn.Linear(c["hidden_size"], c["intermediate_size"], bias=False)
        self.up_proj = nn.Linear(c["hidden_size"], c["intermediate_size"], bias=False)
        self.down_proj = nn.Linear(c["intermediate_size"], c["hidden_size"], bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(c["hidden_size"]), nn.RMSNorm(c["hidden_size"])
        self.attention = Attention(c)
        self.feed_forward = FeedForward(c)

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.feed_forward(self.norm2(x))


class CodeModel(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.embed = nn.Embedding(c["vocab_size"], c["hidden_size"])
        self.layers = nn.ModuleList([Layer(c) for _ in range(c["num_layers"])])
        self.norm = nn.RMSNorm(c["hidden_size"])
        self.lm_head = nn.Linear(c["hidden_size"], c["vocab_size"], bias=False)

    def forward(self, ids):
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        return self.lm_head(self.norm(x[:, -1]))


def load_model(config, device):
    with torch.device(device):
        model = CodeModel(config)
    model = model.to(getattr(torch, config["dtype"]))
    return model.eval().requires_grad_(False)


def tokenize(text, vocab):
    return torch.tensor([[(ord(c) * 193 + i) % vocab for i, c in enumerate(text)]])


@torch.inference_mode()
def complete(model, ids, n):
    for _ in range(n):
        token = model(ids).argmax(-1, keepdim=True).clamp(0, CONFIG["vocab_size"] - 1)
        ids = torch.cat([ids, token], dim=1)
    return ids


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--config", help="JSON file with the model's sizes")
    ap.add_argument("--tokens", type=int, default=16)
    args = ap.parse_args()
    config = dict(CONFIG)
    if args.config:
        with open(args.config) as f:
            config.update(json.load(f))
    model = load_model(config, "cuda")
    print(f"{sum(p.numel() for p in model.parameters()) / 1e9:.2f} B parameters", file=sys.stderr)
    for prompt in PROMPTS:
        ids = complete(model, tokenize(prompt, config["vocab_size"]).cuda(), args.tokens)
        print(f"{prompt!r}: {ids.shape[1]} tokens")


if __name__ == "__main__":
    main()
