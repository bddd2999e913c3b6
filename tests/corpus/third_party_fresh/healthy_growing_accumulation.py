"""Gradients are accumulated over ever more micro-batches (2 to 16) per step; the losses of a step are kept until its end."""

import sys

import torch
from torch import nn


class Tagger(nn.Module):
    def __init__(self, words=400, tags=12, width=48):
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.rnn = nn.GRU(width, width, batch_first=True, bidirectional=True)
        self.out = nn.Linear(2 * width, tags)

    def forward(self, tokens):
        return self.out(self.rnn(self.embed(tokens))[0])


class AccumulatingTrainer:
    def __init__(self, model, averaged_from):
        self.model = model
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
        self.averaged_from = averaged_from
        self.average = None
        self.steps = 0

    def step(self, micro_batches):
        losses = []
        for tokens, tags in micro_batches:
            logits = self.model(tokens)
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), tags.flatten())
            (loss / len(micro_batches)).backward()
            losses.append(loss.detach())
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.steps += 1
        if self.steps >= self.averaged_from:
            self.update_average()
        return torch.stack(losses).mean().item(), norm.item()

    @torch.no_grad()
    def update_average(self):
        if self.average is None:
            self.average = [p.detach().clone() for p in self.model.parameters()]
        for mean, p in zip(self.average, self.model.parameters()):
            mean.lerp_(p, 0.02)


def main():
    device = sys.argv[1]
    torch.manual_seed(34)
    torch.set_num_threads(1)
    tag_of = torch.randint(0, 12, (400,), device=device)
    trainer = AccumulatingTrainer(Tagger().to(device), averaged_from=40)
    for step in range(90):
        count = 2 + 14 * step // 89
        micro_batches = []
        for _ in range(count):
            tokens = torch.randint(0, 400, (6, 18), device=device)
            micro_batches.append((tokens, tag_of[tokens]))
        loss, norm = trainer.step(micro_batches)
        if step % 30 == 29:
            print(f"{step}: {count} micro-batches, loss {loss:.3f}, norm {norm:.2f}")


if __name__ == "__main__":
    main()
