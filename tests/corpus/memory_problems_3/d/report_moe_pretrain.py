import math
import time

import torch
import torch.nn.functional as F
from torch import nn

from blocks import MoE, MoEArguments

VOCAB, LENGTH, BATCH, LAYERS, STEPS = 512, 512, 16, 4, 120


class Block(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.norm = nn.LayerNorm(args.hidden_size)
        self.mixing = nn.Linear(args.hidden_size, args.hidden_size)
        self.moe = MoE(args)
        self.register_buffer("balance", torch.zeros(args.num_experts), persistent=False)

    def balance_loss(self, x):
        """Importance of each expert over the batch, kept near uniform."""
        importance = self.moe.router.layer(x.mean(dim=1)).softmax(dim=-1).mean(dim=0)
        self.balance.mul_(0.9).add_(importance.detach(), alpha=0.1)
        return (importance * importance.numel()).square().mean()

    def forward(self, x):
        h = self.norm(x)
        x = x + self.mixing(h)
        return x + self.moe(h), self.balance_loss(h)


class LanguageModel(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, args.hidden_size)
        self.blocks = nn.ModuleList(Block(args) for _ in range(LAYERS))
        self.head = nn.Linear(args.hidden_size, VOCAB, bias=False)

    def forward(self, tokens):
        x, balance = self.embed(tokens), 0.0
        for block in self.blocks:
            x, block_balance = block(x)
            balance = balance + block_balance
        return self.head(x), balance


def batches(steps):
    generator = torch.Generator().manual_seed(5)
    for _ in range(steps):
        tokens = torch.randint(VOCAB, (BATCH, LENGTH + 1), generator=generator).cuda()
        yield tokens[:, :-1], tokens[:, 1:]


args = MoEArguments()
model = LanguageModel(args).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.05)
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: 0.5 * (1 + math.cos(math.pi * s / STEPS)))
started = time.time()
for step, (tokens, targets) in enumerate(batches(STEPS)):
    logits, balance = model(tokens)
    loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten()) + args.loss_weight * balance
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    schedule.step()
    if step % 10 == 0:
        print(f"step {step} loss {loss.item():.3f} balance {balance.item():.3f} "
              f"memory {torch.cuda.memory_allocated() / 2**20:.0f} MiB {time.time() - started:.1f} s")
