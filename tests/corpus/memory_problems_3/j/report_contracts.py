"""Clause completion service: drafts the continuation of contract texts in small request batches."""
import sys
import time
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn


@dataclass
class Config:
    vocabulary: int = 64000
    width: int = 512
    layers: int = 6
    heads: int = 8
    context: int = 1664


class Cache:
    def __init__(self, config, batch, device, dtype):
        head = config.width // config.heads
        shape = (config.layers, 2, batch, config.heads, config.context, head)
        self.store = torch.zeros(shape, device=device, dtype=dtype)
        self.length = 0

    def write(self, layer, k, v):
        end = self.length + k.size(2)
        self.store[layer, 0, :, :, self.length:end] = k
        self.store[layer, 1, :, :, self.length:end] = v
        return self.store[layer, 0, :, :, :end], self.store[layer, 1, :, :, :end]


class Layer(nn.Module):
    def __init__(self, config, index):
        super().__init__()
        self.index, self.heads = index, config.heads
        self.norm1, self.norm2 = nn.LayerNorm(config.width), nn.LayerNorm(config.width)
        self.qkv = nn.Linear(config.width, 3 * config.width)
        self.out = nn.Linear(config.width, config.width)
        self.mlp = nn.Sequential(
            nn.Linear(config.width, 4 * config.width), nn.GELU(), nn.Linear(4 * config.width, config.width)
        )

    def forward(self, x, cache):
        b, n, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        k, v = cache.write(self.index, k, v)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=n > 1)
        x = x + self.out(mixed.transpose(1, 2).reshape(b, n, d))
        return x + self.mlp(self.norm2(x))


class ClauseModel(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.tokens = nn.Embedding(config.vocabulary, config.width)
        self.positions = nn.Embedding(config.context, config.width)
        self.layers = nn.ModuleList(Layer(config, i) for i in range(config.layers))
        self.norm = nn.LayerNorm(config.width)
        self.head = nn.Linear(config.width, config.vocabulary, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, ids, cache):
        place = torch.arange(cache.length, cache.length + ids.size(1), device=ids.device)
        x = self.tokens(ids) + self.positions(place)
        for layer in self.layers:
            x = layer(x, cache)
        cache.length += ids.size(1)
        return self.head(self.norm(x)).float()


class CompletionService:
    def __init__(self, config, device):
        self.config, self.device = config, device
        self.model = ClauseModel(config).to(device, torch.float16).eval()

    def pick(self, scores, temperature, top):
        values, candidates = (scores / temperature).topk(top, dim=-1)
        choice = values.softmax(-1).argmax(-1, keepdim=True).clamp(0, top - 1)
        return candidates.gather(-1, choice).clamp(0, self.config.vocabulary - 1)

    @torch.inference_mode()
    def complete(self, prompts, new_tokens, temperature=0.8, top=40):
        ids = prompts.to(self.device)
        cache = Cache(self.config, ids.size(0), self.device, torch.float16)
        produced = []
        step = ids
        for _ in range(new_tokens):
            scores = self.model(step, cache)[:, -1]
            step = self.pick(scores, temperature, top)
            produced.append(step)
        return torch.cat(produced, 1).cpu()


def requests(count, batch, vocabulary):
    rng = torch.Generator().manual_seed(17)
    for i in range(count):
        length = (1500, 1100, 1600, 900)[i % 4]
        yield torch.randint(0, vocabulary, (batch, length), generator=rng)


def main(device):
    torch.manual_seed(1)
    config = Config()
    service = CompletionService(config, device)
    for number, prompts in enumerate(requests(4, batch=6, vocabulary=config.vocabulary)):
        start = time.time()
        drafts = service.complete(prompts, new_tokens=24)
        print(f"request {number}: {prompts.size(1)} tokens in, {drafts.size(1)} out, {time.time() - start:.2f}s")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "cuda")
