"""Answers clause questions about long contracts with a small local language model."""
import sys
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class ModelConfig:
    vocab: int = 64_000
    width: int = 768
    depth: int = 8
    heads: int = 12
    context: int = 2304


@dataclass
class Output:
    logits: torch.Tensor
    cache: list


class RMSNorm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        scale = x.float().square().mean(-1, keepdim=True).add(1e-6).rsqrt()
        return (x.float() * scale).to(x.dtype) * self.weight


class DecoderLayer(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.heads = cfg.heads
        self.norm1, self.norm2 = RMSNorm(cfg.width), RMSNorm(cfg.width)
        self.qkv = nn.Linear(cfg.width, 3 * cfg.width, bias=False)
        self.proj = nn.Linear(cfg.width, cfg.width, bias=False)
        self.gate = nn.Linear(cfg.width, 2 * cfg.width, bias=False)
        self.up = nn.Linear(cfg.width, 2 * cfg.width, bias=False)
        self.down = nn.Linear(2 * cfg.width, cfg.width, bias=False)

    def forward(self, x, past, offset):
        b, t, w = x.shape
        q, k, v = (z.reshape(b, t, self.heads, -1).transpose(1, 2)
                   for z in self.qkv(self.norm1(x)).chunk(3, -1))
        keys, values = past
        keys[:, :, offset:offset + t] = k
        values[:, :, offset:offset + t] = v
        seen = offset + t
        h = F.scaled_dot_product_attention(q, keys[:, :, :seen], values[:, :, :seen],
                                           is_causal=t > 1)
        x = x + self.proj(h.transpose(1, 2).reshape(b, t, w))
        h = self.norm2(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class ContractLM(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg
        self.embed = nn.Embedding(cfg.vocab, cfg.width)
        self.position = nn.Embedding(cfg.context, cfg.width)
        self.layers = nn.ModuleList(DecoderLayer(cfg) for _ in range(cfg.depth))
        self.norm = RMSNorm(cfg.width)
        self.lm_head = nn.Linear(cfg.width, cfg.vocab, bias=False)

    def empty_cache(self, batch):
        shape = (batch, self.cfg.heads, self.cfg.context, self.cfg.width // self.cfg.heads)
        weight = self.embed.weight
        return [(weight.new_zeros(shape), weight.new_zeros(shape)) for _ in self.layers]

    def forward(self, tokens, cache, offset=0):
        place = torch.arange(offset, offset + tokens.shape[1], device=tokens.device)
        x = self.embed(tokens) + self.position(place)
        for layer, past in zip(self.layers, cache):
            x = layer(x, past, offset)
        return Output(self.lm_head(self.norm(x)), cache)


class Sampler:
    def __init__(self, temperature=0.8, top_k=40):
        self.temperature = temperature
        self.top_k = top_k

    def __call__(self, scores):
        best, index = (scores / self.temperature).topk(self.top_k, dim=-1)
        choice = torch.multinomial(F.softmax(best, -1), 1)
        return index.gather(-1, choice)


class Assistant:
    def __init__(self, device, seed=0):
        torch.manual_seed(seed)
        self.device = device
        self.model = ContractLM(ModelConfig()).to(device, torch.bfloat16).eval()
        self.sampler = Sampler()

    @torch.inference_mode()
    def answer(self, tokens, max_new=24):
        tokens = tokens.to(self.device)
        output = self.model(tokens, self.model.empty_cache(tokens.shape[0]))
        produced, offset = [], tokens.shape[1]
        for _ in range(max_new):
            scores = output.logits[:, -1].float()
            token = self.sampler(scores)
            produced.append(token)
            output = self.model(token, output.cache, offset)
            offset += 1
        return torch.cat(produced, 1).cpu()


def main():
    device = torch.device(sys.argv[1] if len(sys.argv) > 1 else "cuda")
    assistant = Assistant(device)
    generator = torch.Generator().manual_seed(6)
    for request, (clauses, length) in enumerate([(2, 900), (4, 1600), (4, 2200), (3, 1200)]):
        tokens = torch.randint(0, 64_000, (clauses, length), generator=generator)
        reply = assistant.answer(tokens)
        print(f"request {request}: {clauses} clauses x {length} tokens -> {tuple(reply.shape)}", flush=True)


if __name__ == "__main__":
    main()
