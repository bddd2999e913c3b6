"""Random search over learning rate, batch size and weight decay for a summarisation model."""
import math
import random

import torch
from torch import nn
from torch.nn import functional as F


class EncoderDecoder(nn.Module):
    def __init__(self, vocabulary=32000, width=768, heads=12, layers=8):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        block = dict(d_model=width, nhead=heads, dim_feedforward=4 * width, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(**block), layers, enable_nested_tensor=False)
        self.decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(**block), layers)

    def forward(self, source, target):
        memory = self.encoder(self.embedding(source))
        return self.decoder(self.embedding(target), memory) @ self.embedding.weight.T


class Trainer:
    def __init__(self, model_init, steps, device="cuda"):
        self.model_init = model_init
        self.steps = steps
        self.device = device
        self.model = None
        self.optimizer = None
        self.lr_scheduler = None

    def create_optimizer_and_scheduler(self, trial):
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=trial["learning_rate"],
                                           weight_decay=trial["weight_decay"], foreach=False)
        warmup = self.steps // 10 + 1
        self.lr_scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda s: min(1.0, (s + 1) / warmup))

    def batches(self, count, batch_size, length):
        for _ in range(count):
            source = torch.zeros(batch_size, 3 * length, dtype=torch.long)
            target = torch.zeros(batch_size, length, dtype=torch.long)
            yield source.to(self.device), target.to(self.device)

    def train(self, trial):
        model = self.model_init().to(self.device)
        self.model = model
        self.create_optimizer_and_scheduler(trial)
        model.train()
        for source, target in self.batches(self.steps, trial["batch_size"], 24):
            logits = model(source, target)
            loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), target[:, 1:].flatten())
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.lr_scheduler.step()
        return loss.item()

    @torch.no_grad()
    def evaluate(self, batches=4):
        self.model.eval()
        total = 0.0
        for source, target in self.batches(batches, 8, 32):
            logits = self.model(source, target)
            total += F.cross_entropy(logits[:, :-1].flatten(0, 1), target[:, 1:].flatten()).item()
        return total / batches


class Study:
    def __init__(self, seed):
        self.random = random.Random(seed)
        self.trials = []

    def ask(self):
        return {"learning_rate": 10 ** self.random.uniform(-5, -3.5),
                "batch_size": self.random.choice([2, 4]),
                "weight_decay": self.random.choice([0.0, 0.01, 0.1])}

    def optimize(self, objective, n_trials):
        for number in range(n_trials):
            params = self.ask()
            value = objective(params)
            self.trials.append((value if math.isfinite(value) else float("inf"), params))
            print(f"trial {number}: {params} -> {value:.4f}, {torch.cuda.memory_allocated() / 2**20:.0f} MiB, "
                  f"at most {torch.cuda.max_memory_allocated() / 2**20:.0f} MiB",
                  flush=True)
        return min(self.trials, key=lambda t: t[0])


def run_search(trainer, n_trials, seed=11):
    def objective(params):
        trainer.train(params)
        return trainer.evaluate()

    return Study(seed).optimize(objective, n_trials)


def main():
    torch.manual_seed(0)
    trainer = Trainer(EncoderDecoder, steps=12)
    print("best", run_search(trainer, n_trials=4))
    print("max allocated", torch.cuda.max_memory_allocated() // 2**20, "MiB")


if __name__ == "__main__":
    main()
