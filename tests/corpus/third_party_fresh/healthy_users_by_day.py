"""A personal keyboard: each user has an adapter of fixed size, made at the first visit; more people sign up, until all 240 have."""

import random
import sys

import torch
from torch import nn


class Adapter:
    def __init__(self, width, rank, device):
        self.down = torch.randn(width, rank, device=device) / width**0.5
        self.up = torch.zeros(rank, width, device=device)

    def apply(self, x):
        return x + x @ self.down @ self.up

    def learn(self, x, error, rate=0.05):
        self.up.addmm_((x @ self.down).T, error, alpha=-rate / len(x))


class Keyboard:
    def __init__(self, device, words=700, width=64):
        self.device = device
        self.width = width
        self.embed = nn.Embedding(words, width).to(device)
        self.base = nn.Sequential(nn.Linear(width, 128), nn.GELU(), nn.Linear(128, width)).to(device)
        self.adapters = {}

    @torch.no_grad()
    def type(self, user, words):
        if user not in self.adapters:
            self.adapters[user] = Adapter(self.width, 8, self.device)
        adapter = self.adapters[user]
        x = self.embed(torch.tensor(words, device=self.device))
        guess = adapter.apply(self.base(x[:-1]))
        scores = guess @ self.embed.weight.T
        adapter.learn(self.base(x[:-1]), guess - x[1:])
        return (scores.argmax(dim=1) == torch.tensor(words[1:], device=self.device)).sum().item()


def main():
    device = sys.argv[1]
    torch.manual_seed(46)
    torch.set_num_threads(1)
    rng = random.Random(46)
    keyboard = Keyboard(device)
    people = 240
    signed_up = 15
    typed = right = 0
    for day in range(16):
        for user in range(signed_up):
            for _ in range(rng.choice([0, 1, 2, 3])):
                words = [(user * 7 + 3 * i + rng.randrange(3)) % 700 for i in range(rng.randint(8, 24))]
                right += keyboard.type(user, words)
                typed += len(words)
        if day % 5 == 4:
            print(f"day {day}: {signed_up} users, {len(keyboard.adapters)} adapters")
        signed_up = min(people, signed_up + 15)
    print(f"{typed} words, {right} guessed")


if __name__ == "__main__":
    main()
