"""Summaries of long contracts with a small decoder-only language model."""
import sys
import time
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class Config:
    vocab_size: int = 128_256
    dim: int = 1024
    n_layers: int = 10
    n_heads: int = 16
    n_kv_heads: int = 4
    ffn_dim: int = 3584
    max_len: int = 8192
    dtype: torch.dtype = torch.bfloat16


class RMSNorm(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        return F.rms_norm(x, (x.shape[-1],), self.weight)


class KVCache:
    def __init__(self, config, batch, length, device):
        shape = (config.n_layers, batch, config.n_kv_heads, length, config.dim // config.n_heads)
        self.k = torch.empty(shape, dtype=config.dtype, device=device)
        self.v = torch.empty(shape, dtype=config.dtype, device=device)
        self.used = 0

    def extend(self, layer, k, v):
        end = self.used + k.shape[2]
        self.k[layer, :, :, self.used:end] = k
        self.v[layer, :, :, self.used:end] = v
        return self.k[layer, :, :, :end], self.v[layer, :, :, :end]


class Layer(nn.Module):
    def __init__(self, config, index):
        super().__init__()
        self.index, self.heads, self.kv_heads = index, config.n_heads, config.n_kv_heads
        self.head_dim = config.dim // config.n_heads
        self.norm1, self.norm2 = RMSNorm(config.dim), RMSNorm(config.dim)
        self.q = nn.Linear(config.dim, config.dim, bias=False)
        self.kv = nn.Linear(config.dim, 2 * self.kv_heads * self.head_dim, bias=False)
        self.o = nn.Linear(config.dim, config.dim, bias=False)
        self.gate = nn.Linear(config.dim, config.ffn_dim, bias=False)
        self.up = nn.Linear(config.dim, config.ffn_dim, bias=False)
        self.down = nn.Linear(config.ffn_dim, config.dim, bias=False)

    def forward(self, x, cache):
        batch, length, dim = x.shape
        h = self.norm1(x)
        q = self.q(h).view(batch, length, self.heads, self.head_dim).transpose(1, 2)
        k, v = self.kv(h).view(batch, length, 2, self.kv_heads, self.head_dim).permute(2, 0, 3, 1, 4)
        k, v = cache.extend(self.index, k, v)
        groups = self.heads // self.kv_heads
        k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
        h = F.scaled_dot_product_attention(q, k, v, is_causal=length > 1)
        x = x + self.o(h.transpose(1, 2).reshape(batch, length, dim))
        h = self.norm2(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class ContractLM(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        self.embed = nn.Embedding(config.vocab_size, config.dim)
        self.layers = nn.ModuleList(Layer(config, i) for i in range(config.n_layers))
        self.norm = RMSNorm(config.dim)

    def forward(self, tokens, cache):
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x, cache)
        cache.used += tokens.shape[1]
        logits = F.linear(self.norm(x), self.embed.weight)
        return logits.float()


class Summarizer:
    def __init__(self, model, device, new_tokens=24, temperature=0.7):
        self.model, self.device = model, device
        self.new_tokens, self.temperature = new_tokens, temperature

    def pick(self, logits):
        scaled = logits[:, -1] / self.temperature
        return scaled.argmax(dim=-1, keepdim=True)

    @torch.inference_mode()
    def summarize(self, prompts):
        prompts = prompts.to(self.device)
        batch, length = prompts.shape
        cache = KVCache(self.model.config, batch, length + self.new_tokens, self.device)
        token = self.pick(self.model(prompts, cache))
        answer = [token]
        for _ in range(self.new_tokens - 1):
            token = self.pick(self.model(token, cache))
            answer.append(token)
        return torch.cat(answer, dim=1).cpu()


def main():
    device = torch.device(sys.argv[1] if len(sys.argv) > 1 else "cuda")
    torch.manual_seed(17)
    config = Config()
    torch.set_default_dtype(config.dtype)
    with device:
        model = ContractLM(config).eval()
    print(f"model with {sum(p.numel() for p in model.parameters()) / 1e6:.0f} M parameters", flush=True)
    summarizer = Summarizer(model, device)
    lengths = [640, 1152, 1920, 3584, 7168]
    for number, length in enumerate(lengths):
        started = time.time()
        contracts = torch.randint(0, config.vocab_size, (2, length))
        summary = summarizer.summarize(contracts)
        print(f"batch {number}: {length} prompt tokens, {summary.shape[1]} new, {time.time() - started:.1f} s", flush=True)


if __name__ == "__main__":
    main()
