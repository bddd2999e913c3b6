"""Class-incremental learning: a shared trunk and masked feature subspaces per episode."""
import argparse
import random
from collections import defaultdict

import torch
import torch.nn as nn
import torch.nn.functional as F


class Trunk(nn.Module):
    def __init__(self, din=256, width=1024, depth=3):
        super().__init__()
        dims = [din] + [width] * depth
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in zip(dims, dims[1:]))

    def forward(self, x):
        for layer in self.layers:
            x = F.relu(layer(x))
        return x


class MaskedClassifier(nn.Module):
    """The active subspace is selected with a dropout-like mask in front of the head."""

    def __init__(self, n_classes, width=1024):
        super().__init__()
        self.trunk = Trunk(width=width)
        self.head = nn.Linear(width, n_classes)
        self.width = width

    def set_episode(self, mask):
        def select(module, inputs):
            return (inputs[0] * mask,)

        self.head.register_forward_pre_hook(select)

    def forward(self, x):
        return self.head(self.trunk(x))


class EpisodeSampler:
    def __init__(self, n_classes, dim, seed):
        self.rng = random.Random(seed)
        self.prototypes = torch.randn(n_classes, dim)
        self.n_classes = n_classes

    def draw(self, n_way, shots):
        classes = self.rng.sample(range(self.n_classes), n_way)
        labels = torch.tensor(classes).repeat_interleave(shots)
        x = self.prototypes[labels] + 0.5 * torch.randn(len(labels), self.prototypes.shape[1])
        return x, labels


def train_episode(model, optimizer, x, y):
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.detach()




def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--episodes", type=int, default=120)
    ap.add_argument("--way", type=int, default=5)
    ap.add_argument("--shots", type=int, default=8)
    ap.add_argument("--classes", type=int, default=100)
    ap.add_argument("--keep", type=float, default=0.4)
    args = ap.parse_args()

    device = torch.device("cuda")
    torch.manual_seed(5)
    sampler = EpisodeSampler(args.classes, 256, seed=5)
    model = MaskedClassifier(args.classes).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    history = defaultdict(list)

    for episode in range(args.episodes):
        x, y = sampler.draw(args.way, args.shots)
        mask = (torch.rand(args.way * args.shots, model.width) < args.keep).float()
        model.set_episode(mask.to(device))
        loss = train_episode(model, optimizer, x.to(device), y.to(device))
        history["loss"].append(loss.item())
        if episode % 30 == 29:
            recent = history["loss"][-30:]
            print(f"episode {episode + 1}: loss {sum(recent) / len(recent):.4f}")


if __name__ == "__main__":
    main()
