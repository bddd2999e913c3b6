"""Small causal language model on source code, with per-token loss percentiles."""
import argparse
import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class Corpus:
    def __init__(self, length, vocab, seed):
        g = torch.Generator().manual_seed(seed)
        self.ids = torch.randint(0, vocab, (length,), generator=g)
        self.g = g

    def sample(self, batch, context):
        starts = torch.randint(0, len(self.ids) - context - 1, (batch,), generator=self.g)
        rows = torch.stack([self.ids[s:s + context + 1] for s in starts])
        return rows[:, :-1], rows[:, 1:]


class CodeModel(nn.Module):
    def __init__(self, vocab, width, depth):
        super().__init__()
        self.embed = nn.Embedding(vocab, width)
        self.rnn = nn.ModuleList(nn.Linear(width * 2, width) for _ in range(depth))
        self.mix = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.head = nn.Linear(width, vocab)

    def forward(self, ids):
        x = self.embed(ids)
        for gate, mix in zip(self.rnn, self.mix):
            past = x.cumsum(1) / torch.arange(1, x.shape[1] + 1, device=x.device).view(1, -1, 1)
            x = x + torch.tanh(mix(x)) * torch.sigmoid(gate(torch.cat([x, past], -1)))
        return self.head(x)


class Trainer:
    def __init__(self, args):
        self.args = args
        self.model = CodeModel(args.vocab, args.width, args.depth).cuda()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=args.lr)
        self.schedule = torch.optim.lr_scheduler.LambdaLR(
            self.optimizer, lambda s: 0.5 * (1 + math.cos(math.pi * s / args.steps)))
        self.token_losses = []
        self.step_count = 0

    def train_step(self, ids, targets):
        logits = self.model(ids)
        per_token = F.cross_entropy(logits.transpose(1, 2), targets, reduction="none")
        loss = per_token.mean()
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        self.schedule.step()
        self.token_losses.append(per_token.detach())
        self.step_count += 1
        return loss

    def report(self):
        recent = torch.cat([t.flatten() for t in self.token_losses[-10:]])
        q = torch.quantile(recent[:100_000], torch.tensor([0.5, 0.9, 0.99], device=recent.device))
        p50, p90, p99 = q.tolist()
        print(f"step {self.step_count}: p50 {p50:.3f} p90 {p90:.3f} p99 {p99:.3f}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batch", type=int, default=48)
    parser.add_argument("--context", type=int, default=256)
    parser.add_argument("--vocab", type=int, default=256)
    parser.add_argument("--width", type=int, default=96)
    parser.add_argument("--depth", type=int, default=3)
    parser.add_argument("--lr", type=float, default=2e-3)
    args = parser.parse_args()

    torch.manual_seed(0)
    corpus = Corpus(300_000, args.vocab, seed=1)
    trainer = Trainer(args)
    for step in range(1, args.steps + 1):
        ids, targets = corpus.sample(args.batch, args.context)
        trainer.train_step(ids.cuda(), targets.cuda())
        if step % 100 == 0:
            trainer.report()


if __name__ == "__main__":
    main()
