"""Fine-tunes a language model of about 280 million parameters in fp32 with AdamW.

True cause: the first optimizer.step() creates exp_avg and exp_avg_sq, twice the size of the weights, beside the weights
and the gradients; forward and backward of the same step fit easily.
The line: `self.optimizer.step()` (the state belongs to `torch.optim.AdamW(model.parameters(), ...)`).
Cure: an optimizer with less state (8-bit Adam, Adafactor, SGD), or weights in bfloat16, or training only an adapter;
a smaller batch does not help, since activations are a few per cent of the memory.
"""

import logging

import torch
from torch import nn

logging.basicConfig(level=logging.INFO, format="%(message)s")
log = logging.getLogger("finetune")


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(dim)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)
        self.norm2 = nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, n, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        a = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(a.transpose(1, 2).reshape(b, n, d))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    def __init__(self, vocab=32000, dim=1280, layers=10, heads=16):
        super().__init__()
        self.wte = nn.Embedding(vocab, dim)
        self.blocks = nn.ModuleList(Block(dim, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(dim)
        self.lm_head = nn.Linear(dim, vocab, bias=False)

    def forward(self, tokens):
        x = self.wte(tokens)
        for block in self.blocks:
            x = block(x)
        return self.lm_head(self.norm(x))


class Trainer:
    def __init__(self, model, lr):
        self.model = model
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.1)

    def training_step(self, tokens):
        logits = self.model(tokens[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        return loss.detach()

    def fit(self, steps):
        for step in range(steps):
            tokens = torch.randint(0, 32000, (2, 129)).cuda()
            loss = self.training_step(tokens)
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()  # CAUSE
            self.optimizer.zero_grad(set_to_none=True)
            log.info("step %d loss %.3f", step, loss.item())


if __name__ == "__main__":
    torch.manual_seed(1)
    with torch.device("cuda"):
        model = GPT()
    log.info("%.0f M parameters", sum(p.numel() for p in model.parameters()) / 1e6)
    Trainer(model, lr=1e-5).fit(steps=20)
