"""Full fine-tuning of a small code model on one card.

    python report_full_finetune.py cuda
"""
import math
import sys

import torch
import torch.nn as nn
import torch.nn.functional as F

VOCAB, DIM, DEPTH, HEADS, CONTEXT = 8000, 640, 10, 10, 96


class RMSNorm(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        return F.rms_norm(x, self.weight.shape, self.weight, 1e-6)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = RMSNorm(DIM), RMSNorm(DIM)
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(DIM, DIM, bias=False) for _ in range(4))
        self.gate, self.up = (nn.Linear(DIM, 4 * DIM, bias=False) for _ in range(2))
        self.down = nn.Linear(4 * DIM, DIM, bias=False)

    def forward(self, x):
        batch, length, _ = x.shape
        y = self.norm1(x)
        q, k, v = (w(y).view(batch, length, HEADS, -1).transpose(1, 2) for w in (self.wq, self.wk, self.wv))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.wo(y.transpose(1, 2).reshape(batch, length, DIM))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class CodeLM(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok = nn.Embedding(VOCAB, DIM)
        self.pos = nn.Embedding(CONTEXT, DIM)
        self.blocks = nn.ModuleList(Block() for _ in range(DEPTH))
        self.norm = RMSNorm(DIM)

    def forward(self, ids):
        x = self.tok(ids) + self.pos.weight[: ids.shape[1]]
        for block in self.blocks:
            x = block(x)
        return F.linear(self.norm(x), self.tok.weight)


class Recipe:
    """Single-device full fine-tune: model, optimizer, schedule, train loop."""

    def __init__(self, config, device):
        self.config, self.device = config, device
        self.model = CodeLM().to(device)
        self.optimizer = self._setup_optimizer(config)
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, self._cosine(config))

    def _setup_optimizer(self, config):
        decay = [p for p in self.model.parameters() if p.ndim > 1]
        rest = [p for p in self.model.parameters() if p.ndim <= 1]
        return torch.optim.NAdam(
            [{"params": decay, "weight_decay": config["weight_decay"]}, {"params": rest, "weight_decay": 0.0}],
            lr=config["lr"], betas=(0.9, 0.95),
        )

    @staticmethod
    def _cosine(config):
        def factor(step):
            if step < config["warmup"]:
                return (step + 1) / config["warmup"]
            progress = (step - config["warmup"]) / max(1, config["steps"] - config["warmup"])
            return 0.5 * (1 + math.cos(math.pi * progress))

        return factor

    def train(self, batches):
        self.model.train()
        for step, ids in enumerate(batches):
            ids = ids.to(self.device, non_blocking=True)
            logits = self.model(ids[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), self.config["max_grad_norm"])
            self.optimizer.step()
            self.scheduler.step()
            self.optimizer.zero_grad(set_to_none=True)
            if step % 8 == 0:
                print(f"step {step:3d}  loss {loss.item():.3f}  lr {self.scheduler.get_last_lr()[0]:.2e}")


def packed_batches(steps, batch_size, seed=13):
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        yield torch.randint(0, VOCAB, (batch_size, CONTEXT + 1), generator=generator)


def main():
    device = torch.device(sys.argv[1] if len(sys.argv) > 1 else "cuda")
    torch.manual_seed(0)
    config = {"lr": 2e-4, "weight_decay": 0.05, "warmup": 6, "steps": 30, "max_grad_norm": 1.0}
    recipe = Recipe(config, device)
    recipe.train(packed_batches(config["steps"], batch_size=2))


if __name__ == "__main__":
    main()
