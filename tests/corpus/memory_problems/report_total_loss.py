"""Kind of report: "memory grows with every iteration of an epoch, falls back at the next epoch" (PyTorch forum and issues).

True cause: `total_loss` is a tensor with a graph, so that each addition makes the graph one batch longer and keeps that
batch's graph alive until the epoch ends (backward frees most saved tensors, the penalty's graph is never run backward).
The line: `total_loss += loss + self.penalty(...)`.
Cure: `total_loss += loss.item()` (or loss.detach()), and the penalty under torch.no_grad() if it is only a statistic.
"""

import torch
from torch import nn


class Trainer:
    def __init__(self, model, lr=1e-3, penalty_weight=1e-2):
        self.model = model
        self.optimizer = torch.optim.Adam(model.parameters(), lr=lr)
        self.criterion = nn.CrossEntropyLoss()
        self.penalty_weight = penalty_weight

    def penalty(self, logits):
        p = logits.softmax(-1)
        return self.penalty_weight * (p * p.clamp(min=1e-8).log()).sum(-1).mean()

    def train_epoch(self, batches):
        total_loss = 0.0
        for x, y in batches:
            x, y = x.cuda(), y.cuda()
            logits = self.model(x)
            loss = self.criterion(logits, y)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            total_loss += loss + self.penalty(logits)  # CAUSE
        return total_loss / len(batches)


def make_batches(count, batch_size=256, features=512, classes=2000):
    return [(torch.randn(batch_size, features), torch.randint(0, classes, (batch_size,))) for _ in range(count)]


def main():
    torch.manual_seed(20)
    model = nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Dropout(0.1), nn.Linear(1024, 2000)).cuda()
    trainer = Trainer(model)
    batches = make_batches(150)
    for epoch in range(3):
        mean = trainer.train_epoch(batches)
        print(f"epoch {epoch}: {mean.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
