"""Trains a translation model; a first evaluation before training checks that everything works, the second one fails.

Report: https://github.com/pytorch/pytorch/issues/31252 ("The first time through evaluation there is no problem, but the
        second time I get OOM errors despite having less than 60% memory utilization") and
        https://github.com/pytorch/pytorch/issues/35901 (the segment of the large tensor was split by smaller ones)
Cause:  fragmentation: the evaluation before training leaves one cached segment of the size of its logits; the gradients
        and optimizer states of the first training step are placed in it, so it never again holds the logits and cannot
        be returned either.
Line:   self.optimizer.step()  (the states that stay in the segment; the segment comes from the first self.evaluate())
Cure:   torch.cuda.empty_cache() after the evaluation before training, or smaller evaluation batches, or
        PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True.
"""
from dataclasses import dataclass

import torch
from torch import nn


@dataclass
class Config:
    vocabulary: int = 32000
    width: int = 1024
    layers: int = 8
    train_batch: int = 8
    train_length: int = 48
    eval_batch: int = 320
    eval_length: int = 100
    steps: int = 150
    evaluate_every: int = 75


class Mixer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(self.norm(x))))


class TranslationModel(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.source = nn.Embedding(config.vocabulary, config.width)
        self.layers = nn.ModuleList(Mixer(config.width) for _ in range(config.layers))
        self.generator = nn.Linear(config.width, config.vocabulary)

    def encode(self, tokens):
        x = self.source(tokens)
        for layer in self.layers:
            x = layer(x)
        return x

    def forward(self, tokens):
        return self.generator(self.encode(tokens))


class Experiment:
    def __init__(self, config, device):
        self.config = config
        self.device = device
        with torch.device(device):
            self.model = TranslationModel(config)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-4)
        self.criterion = nn.CrossEntropyLoss()

    def tokens(self, batch, length):
        return torch.randint(0, self.config.vocabulary, (batch, length)).to(self.device)

    def train_step(self):
        c = self.config
        source, target = self.tokens(c.train_batch, c.train_length), self.tokens(c.train_batch, c.train_length)
        loss = self.criterion(self.model(source).flatten(0, 1), target.flatten())
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()  # CAUSE
        return loss.item()

    @torch.no_grad()
    def evaluate(self):
        c = self.config
        self.model.eval()
        source, target = self.tokens(c.eval_batch, c.eval_length), self.tokens(c.eval_batch, c.eval_length)
        encoded = torch.cat([self.model.encode(part) for part in source.split(16)])
        matches = (self.model.generator(encoded).argmax(dim=-1) == target).float().mean().item()
        self.model.train()
        return matches

    def report(self, when, matches):
        allocated, reserved = torch.cuda.memory_allocated() / 2**30, torch.cuda.memory_reserved() / 2**30
        print(f"{when}: matches {matches:.4f}, allocated {allocated:.2f} GiB, reserved {reserved:.2f} GiB")

    def run(self):
        self.report("before training", self.evaluate())  # CAUSE
        for step in range(1, self.config.steps + 1):
            self.train_step()
            if step % self.config.evaluate_every == 0:
                self.report(f"step {step}", self.evaluate())


def main():
    torch.manual_seed(0)
    Experiment(Config(), torch.device("cuda")).run()
    print("max allocated", torch.cuda.max_memory_allocated() // 2**20, "MiB")


if __name__ == "__main__":
    main()
