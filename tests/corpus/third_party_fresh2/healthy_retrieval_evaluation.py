"""Trains a two-tower model and evaluates it now and then; the evaluation collects all embeddings in lists, and returns one number."""

import sys

import torch
import torch.nn.functional as F
from torch import nn


class TwoTowers(nn.Module):
    def __init__(self):
        super().__init__()
        self.left = nn.EmbeddingBag(1000, 64)
        self.right = nn.Sequential(nn.Linear(30, 96), nn.ReLU(), nn.Linear(96, 64))

    def forward(self, words, images):
        return F.normalize(self.left(words), dim=1), F.normalize(self.right(images), dim=1)


def pairs(count, size, device):
    for _ in range(count):
        yield torch.randint(0, 1000, (size, 9), device=device), torch.randn(size, 30, device=device)


@torch.no_grad()
def recall(model, device):
    model.eval()
    texts, images = [], []
    for words, pixels in pairs(40, 24, device):
        text, image = model(words, pixels)
        texts.append(text)
        images.append(image)
    model.train()
    scores = torch.cat(texts) @ torch.cat(images).T
    diagonal = scores.diagonal()[:, None]
    return ((scores > diagonal).sum(dim=1) < 5).float().mean().item()


def main():
    device = sys.argv[1]
    torch.manual_seed(137)
    torch.set_num_threads(1)
    model = TwoTowers().to(device)
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.02)
    history = []
    for epoch in range(10):
        for words, images in pairs(25, 24, device):
            text, image = model(words, images)
            logits = text @ image.T / 0.07
            loss = F.cross_entropy(logits, torch.arange(24, device=device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        history.append(recall(model, device))
    print("recall at 5:", " ".join(f"{value:.3f}" for value in history))


if __name__ == "__main__":
    main()
