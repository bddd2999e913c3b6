"""Reinforcement learning of a small language model: a rollout engine writes answers, then a policy update learns from them.

True cause: the rollout engine's static KV cache, made at start for the largest batch and length, stays on the device
while the policy is updated; the update itself needs little more than a third of the device.
The line: `self.k = torch.zeros(shape, ...)` and `self.v = torch.zeros(shape, ...)` in `StaticCache`.
Cure: free the cache before the update (engine.sleep() that drops it) or size it for the lengths and batches in use.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn


@dataclass
class Config:
    vocab: int = 16000
    dim: int = 512
    layers: int = 8
    heads: int = 8
    max_batch: int = 48
    max_length: int = 2048


class StaticCache:
    def __init__(self, config, device):
        shape = (config.layers, config.max_batch, config.heads, config.max_length, config.dim // config.heads)
        self.k = torch.zeros(shape, device=device)  # CAUSE
        self.v = torch.zeros(shape, device=device)  # CAUSE

    def update(self, layer, position, k, v):
        b, n = k.shape[0], k.shape[2]
        self.k[layer, :b, :, position : position + n] = k
        self.v[layer, :b, :, position : position + n] = v
        return self.k[layer, :b, :, : position + n], self.v[layer, :b, :, : position + n]


class Layer(nn.Module):
    def __init__(self, config, index):
        super().__init__()
        self.index, self.heads = index, config.heads
        self.norm = nn.LayerNorm(config.dim)
        self.qkv = nn.Linear(config.dim, 3 * config.dim)
        self.out = nn.Linear(config.dim, config.dim)
        self.mlp = nn.Sequential(
            nn.LayerNorm(config.dim), nn.Linear(config.dim, 4 * config.dim), nn.GELU(), nn.Linear(4 * config.dim, config.dim)
        )

    def forward(self, x, cache=None, position=0):
        b, n, d = x.shape
        q, k, v = self.qkv(self.norm(x)).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        if cache is not None:
            k, v = cache.update(self.index, position, k, v)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=n > 1)
        x = x + self.out(a.transpose(1, 2).reshape(b, n, d))
        return x + self.mlp(x)


class Policy(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.embed = nn.Embedding(config.vocab, config.dim)
        self.layers = nn.ModuleList(Layer(config, i) for i in range(config.layers))
        self.head = nn.Linear(config.dim, config.vocab, bias=False)

    def forward(self, tokens, cache=None, position=0):
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x, cache, position)
        return self.head(x)


class RolloutEngine:
    def __init__(self, policy, config, device):
        self.policy = policy
        self.cache = StaticCache(config, device)

    @torch.no_grad()
    def generate(self, prompts, new_tokens):
        tokens = prompts
        logits = self.policy(prompts, self.cache, 0)[:, -1]
        for _ in range(new_tokens):
            last = logits.argmax(-1, keepdim=True)
            logits = self.policy(last, self.cache, tokens.shape[1])[:, -1]
            tokens = torch.cat([tokens, last], dim=1)
        return tokens


def update_policy(policy, optimizer, tokens, rewards):
    log_probs = policy(tokens[:, :-1]).log_softmax(-1)
    chosen = log_probs.gather(-1, tokens[:, 1:, None]).squeeze(-1)
    loss = -(chosen.sum(-1) * (rewards - rewards.mean())).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


def main():
    torch.manual_seed(7)
    config, device = Config(), "cuda"
    policy = Policy(config).to(device)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-6)
    engine = RolloutEngine(policy, config, device)
    for iteration in range(5):
        prompts = torch.randint(0, config.vocab, (16, 32)).to(device)
        answers = engine.generate(prompts, new_tokens=96)
        rewards = torch.rand(16).to(device)
        loss = update_policy(policy, optimizer, answers, rewards)
        print(f"iteration {iteration}: loss {loss:.3f}", flush=True)


if __name__ == "__main__":
    main()
