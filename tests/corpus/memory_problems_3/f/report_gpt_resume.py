"""Continue pretraining of a character level GPT from the last checkpoint."""
import math
import os
import tempfile
import time
from dataclasses import asdict, dataclass

import numpy as np
import torch
import torch.nn as nn
from torch.nn import functional as F

batch_size = 4
block_size = 128
max_iters = 80
eval_interval = 40
eval_iters = 5
learning_rate = 6e-4
device = "cuda"


@dataclass
class GPTConfig:
    block_size: int = block_size
    vocab_size: int = 512
    n_layer: int = 6
    n_head: int = 8
    n_embd: int = 512


class Block(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.n_head = config.n_head
        self.ln_1 = nn.LayerNorm(config.n_embd)
        self.c_attn = nn.Linear(config.n_embd, 3 * config.n_embd)
        self.c_proj = nn.Linear(config.n_embd, config.n_embd)
        self.ln_2 = nn.LayerNorm(config.n_embd)
        self.mlp = nn.Sequential(
            nn.Linear(config.n_embd, 4 * config.n_embd), nn.GELU(), nn.Linear(4 * config.n_embd, config.n_embd))

    def forward(self, x):
        B, T, C = x.size()
        q, k, v = self.c_attn(self.ln_1(x)).split(C, dim=2)
        q, k, v = (t.view(B, T, self.n_head, C // self.n_head).transpose(1, 2) for t in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.c_proj(y.transpose(1, 2).reshape(B, T, C))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        self.wte = nn.Embedding(config.vocab_size, config.n_embd)
        self.wpe = nn.Embedding(config.block_size, config.n_embd)
        self.h = nn.ModuleList(Block(config) for _ in range(config.n_layer))
        self.ln_f = nn.LayerNorm(config.n_embd)
        self.lm_head = nn.Linear(config.n_embd, config.vocab_size, bias=False)

    def forward(self, idx, targets):
        pos = torch.arange(idx.size(1), device=idx.device)
        x = self.wte(idx) + self.wpe(pos)
        for block in self.h:
            x = block(x)
        logits = self.lm_head(self.ln_f(x))
        return F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1))


data = np.random.default_rng(0).integers(0, 512, 200_000)


def get_batch():
    ix = np.random.randint(0, len(data) - block_size - 1, batch_size)
    x = torch.stack([torch.from_numpy(data[i:i + block_size]) for i in ix])
    y = torch.stack([torch.from_numpy(data[i + 1:i + 1 + block_size]) for i in ix])
    return x.to(device), y.to(device)


def first_run(ckpt_path):
    """Warm up for two steps and leave a checkpoint, as a preempted job does."""
    config = GPTConfig()
    model = GPT(config).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, betas=(0.9, 0.95), fused=True)
    for _ in range(2):
        model(*get_batch()).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(),
                "model_args": asdict(config), "iter_num": 2, "best_val_loss": 1e9}, ckpt_path)


def get_lr(it):
    return learning_rate * 0.5 * (1.0 + math.cos(math.pi * min(it / max_iters, 1.0)))


@torch.no_grad()
def estimate_loss(model):
    model.eval()
    losses = torch.zeros(eval_iters)
    for k in range(eval_iters):
        losses[k] = model(*get_batch()).item()
    model.train()
    return losses.mean()


def main():
    out_dir = tempfile.mkdtemp()
    ckpt_path = os.path.join(out_dir, "ckpt.pt")
    first_run(ckpt_path)

    print(f"Resuming training from {out_dir}")
    checkpoint = torch.load(ckpt_path, map_location=device)
    model = GPT(GPTConfig(**checkpoint["model_args"]))
    state_dict = checkpoint["model"]
    model.load_state_dict(state_dict)
    model.to(device)
    iter_num = checkpoint["iter_num"]
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, betas=(0.9, 0.95), fused=True)
    optimizer.load_state_dict(checkpoint["optimizer"])
    os.remove(ckpt_path)

    t0 = time.time()
    while iter_num < max_iters:
        for group in optimizer.param_groups:
            group["lr"] = get_lr(iter_num)
        if iter_num % eval_interval == 0:
            print(f"step {iter_num}: val loss {estimate_loss(model):.4f}")
        loss = model(*get_batch())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        iter_num += 1
    print(f"done, {(time.time() - t0) * 1000 / max_iters:.1f}ms per iter")


if __name__ == "__main__":
    main()
