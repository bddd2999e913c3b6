"""A completion service streams tokens from generators; a client reads until it has enough, and the unfinished generator stays in the list of streams."""

import random
import sys

import torch
from torch import nn


class Decoder(nn.Module):
    def __init__(self, vocabulary=300, width=64):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.cell = nn.GRUCell(width, width)
        self.output = nn.Linear(width, vocabulary)

    def forward(self, token, state):
        state = self.cell(self.embedding(token), state)
        return self.output(state), state


class Service:
    def __init__(self, device):
        self.device = device
        self.model = Decoder().to(device)
        self.streams = []

    def stream(self, beams, limit):
        token = torch.randint(0, 300, (beams,), device=self.device)
        state = torch.zeros(beams, 64, device=self.device)
        for _ in range(limit):
            with torch.no_grad():
                logits, state = self.model(token, state)  # LEAK
                token = logits.argmax(dim=1)
            yield token

    def open(self, beams, limit):
        self.streams = [s for s in self.streams if s.gi_frame is not None]
        tokens = self.stream(beams, limit)
        self.streams.append(tokens)  # LEAK
        return tokens


def read(tokens, enough):
    count = 0
    for _ in tokens:
        count += 1
        if count == enough:
            break
    return count


def main():
    torch.manual_seed(47)
    torch.set_num_threads(1)
    rng = random.Random(47)
    service = Service(sys.argv[1])
    total = 0
    for _ in range(450):
        enough = rng.randint(3, 20)
        total += read(service.open(beams=16, limit=16), enough)
    print(f"{total} tokens read")


if __name__ == "__main__":
    main()
