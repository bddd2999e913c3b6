"""Batch summarisation service: prefill the prompt, then greedy decoding with a key/value cache."""
import logging
import random
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

log = logging.getLogger("summarise")


@dataclass
class Config:
    vocab: int = 128256
    dim: int = 1024
    heads: int = 16
    layers: int = 6
    ffn: int = 2816
    max_len: int = 4096


class RMSNorm(nn.Module):
    def __init__(self, dim, eps=1e-5):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.eps = eps

    def forward(self, x):
        return F.rms_norm(x, x.shape[-1:], self.weight, self.eps)


class Block(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.heads = cfg.heads
        self.norm1, self.norm2 = RMSNorm(cfg.dim), RMSNorm(cfg.dim)
        self.qkv = nn.Linear(cfg.dim, 3 * cfg.dim, bias=False)
        self.out = nn.Linear(cfg.dim, cfg.dim, bias=False)
        self.up = nn.Linear(cfg.dim, 2 * cfg.ffn, bias=False)
        self.down = nn.Linear(cfg.ffn, cfg.dim, bias=False)

    def forward(self, x, past):
        b, t, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        if past is not None:
            k = torch.cat([past[0], k], dim=2)
            v = torch.cat([past[1], v], dim=2)
        att = F.scaled_dot_product_attention(q, k, v, is_causal=past is None)
        x = x + self.out(att.transpose(1, 2).reshape(b, t, d))
        gate, up = self.up(self.norm2(x)).chunk(2, dim=-1)
        return x + self.down(F.silu(gate) * up), (k, v)


class CausalLM(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.embed = nn.Embedding(cfg.vocab, cfg.dim)
        self.blocks = nn.ModuleList(Block(cfg) for _ in range(cfg.layers))
        self.norm = RMSNorm(cfg.dim)
        self.lm_head = nn.Linear(cfg.dim, cfg.vocab, bias=False)

    def forward(self, ids, past=None):
        x = self.embed(ids)
        present = []
        for i, block in enumerate(self.blocks):
            x, kv = block(x, past[i] if past is not None else None)
            present.append(kv)
        hidden = self.norm(x)
        logits = self.lm_head(hidden)
        logits = logits.float()
        return logits, present


class Summariser:
    def __init__(self, cfg, device):
        self.device = device
        with torch.device(device):
            self.model = CausalLM(cfg).to(torch.bfloat16).eval()

    @torch.inference_mode()
    def generate(self, prompts, max_new_tokens):
        ids = prompts.to(self.device)
        logits, past = self.model(ids)
        token = logits[:, -1].argmax(dim=-1, keepdim=True)
        produced = [token]
        for _ in range(max_new_tokens - 1):
            logits, past = self.model(token, past)
            token = logits[:, -1].argmax(dim=-1, keepdim=True)
            produced.append(token)
        return torch.cat(produced, dim=1).cpu()


def incoming(n, vocab, seed=11):
    rng = random.Random(seed)
    for i in range(n):
        length = rng.choice([768, 1024, 1536, 2048])
        yield i, torch.randint(0, vocab, (4, length))


def main():
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    cfg = Config()
    service = Summariser(cfg, "cuda")
    served = 0
    for number, prompts in incoming(60, cfg.vocab):
        summary = service.generate(prompts, max_new_tokens=12)
        served += summary.shape[0]
        if number % 20 == 0:
            log.info("request %d: prompt %d tokens, %d documents so far", number, prompts.shape[1], served)
    log.info("served %d documents", served)


if __name__ == "__main__":
    main()
