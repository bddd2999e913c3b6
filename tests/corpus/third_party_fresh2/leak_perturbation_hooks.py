"""Adversarial training of a text classifier which perturbs the embeddings by a forward hook, a new one in each step; old hooks are told to do nothing."""

import sys

import torch
import torch.nn.functional as F
from torch import nn


class TextClassifier(nn.Module):
    def __init__(self, vocabulary=800, width=48):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.mix = nn.Linear(width, width)
        self.head = nn.Linear(width, 4)

    def forward(self, tokens):
        return self.head(torch.relu(self.mix(self.embedding(tokens))).mean(dim=1))


class AdversarialTrainer:
    def __init__(self, device):
        self.device = device
        self.model = TextClassifier().to(device)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3)
        self.active = None

    def attack(self, number, shape):
        delta = 0.01 * torch.randn(shape, device=self.device)  # LEAK

        def perturb(module, args, output):
            if self.active == number:
                return output + delta
            return output

        self.active = number
        self.model.embedding.register_forward_hook(perturb)  # LEAK

    def step(self, number):
        tokens = torch.randint(0, 800, (16, 24), device=self.device)
        labels = torch.randint(0, 4, (16,), device=self.device)
        self.active = None
        clean = F.cross_entropy(self.model(tokens), labels)
        self.attack(number, (16, 24, 48))
        perturbed = F.cross_entropy(self.model(tokens), labels)
        self.optimizer.zero_grad()
        (clean + perturbed).backward()
        self.optimizer.step()


def main():
    torch.manual_seed(17)
    torch.set_num_threads(1)
    trainer = AdversarialTrainer(sys.argv[1])
    for number in range(260):
        trainer.step(number)
    print("adversarial training done")


if __name__ == "__main__":
    main()
