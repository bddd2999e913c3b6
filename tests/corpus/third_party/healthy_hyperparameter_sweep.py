"""Trains a row of models of different widths; the best three are kept, by a score that needs no device."""

import heapq
import random
import sys

import torch
from torch import nn

import pytorch_alloctrace as alloctrace


def build(width, device):
    return nn.Sequential(nn.Linear(32, width), nn.ReLU(), nn.Linear(width, 32)).to(device)


def fit(model, rate, device):
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    losses = []
    for _ in range(6):
        x = torch.randn(32, 32, device=device)
        loss = nn.functional.mse_loss(model(x), x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss)
    return losses


class Leaderboard:
    def __init__(self, size):
        self.size = size
        self.heap = []

    def offer(self, score, trial, model, losses):
        entry = (score, trial, model, losses)
        if len(self.heap) < self.size:
            heapq.heappush(self.heap, entry)
        else:
            heapq.heappushpop(self.heap, entry)


def main():
    device = sys.argv[1]
    torch.manual_seed(19)
    torch.set_num_threads(1)
    rng = random.Random(19)
    board = Leaderboard(3)
    for trial in range(48):
        width, rate = rng.choice([32, 64, 128, 256]), 10 ** rng.uniform(-4, -2)
        model = build(width, device)
        losses = fit(model, rate, device)
        score = -abs(rate - 1e-3) - width / 1e5
        board.offer(score, trial, model, losses)
        alloctrace.step()
    print("best trials:", sorted(trial for _, trial, _, _ in board.heap))


if __name__ == "__main__":
    main()
