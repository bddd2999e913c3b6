"""Trains for several epochs; losses and predictions are collected within an epoch and cleared after its evaluation."""

import sys

import torch
from torch import nn


class Run:
    def __init__(self, device):
        self.device = device
        self.model = nn.Sequential(nn.Linear(30, 80), nn.ReLU(), nn.Linear(80, 50)).to(device)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3)
        self.losses = []
        self.summary = []

    def train_epoch(self, batches):
        self.model.train()
        for _ in range(batches):
            x = torch.randn(64, 30, device=self.device)
            y = x[:, :5].repeat(1, 10)
            loss = nn.functional.mse_loss(self.model(x), y)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.losses.append(loss.detach())

    @torch.no_grad()
    def evaluate(self, batches):
        self.model.eval()
        predictions = []
        for _ in range(batches):
            predictions.append(self.model(torch.randn(256, 30, device=self.device)))
        return torch.cat(predictions).std().item()

    def end_epoch(self, epoch):
        mean = torch.stack(self.losses).mean().item()
        self.losses.clear()
        self.summary.append((epoch, mean, self.evaluate(20)))


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    run = Run(sys.argv[1])
    for epoch in range(7):
        run.train_epoch(50)
        run.end_epoch(epoch)
    print(len(run.summary), "epochs")


if __name__ == "__main__":
    main()
