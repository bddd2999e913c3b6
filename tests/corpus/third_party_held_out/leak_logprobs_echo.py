"""An engine that decodes several requests at once; a request may ask for the log probabilities of its tokens.

They are handed over and dropped when a request ends with an end token; one that is cut by its limit leaves them behind.
"""

import random
import sys

import torch
from torch import nn


class Sequence:
    def __init__(self, number, prompt, limit, ends_after, wants_logprobs):
        self.number = number
        self.cache = prompt
        self.produced = 0
        self.limit = limit
        self.ends_after = ends_after
        self.wants_logprobs = wants_logprobs


class Engine:
    def __init__(self, device, width=48, vocabulary=700):
        self.device = device
        self.width = width
        self.query = nn.Linear(width, width).to(device)
        self.head = nn.Linear(width, vocabulary).to(device)
        self.logprobs = {}
        self.running = []

    def submit(self, number, prompt_length, **options):
        prompt = torch.randn(prompt_length, self.width, device=self.device)
        self.running.append(Sequence(number, prompt, **options))

    def advance(self, sequence):
        query = self.query(sequence.cache[-1:])
        hidden = torch.softmax(query @ sequence.cache.T, dim=-1) @ sequence.cache
        if sequence.wants_logprobs:
            scores = torch.log_softmax(self.head(hidden), dim=-1)  # LEAK
            self.logprobs.setdefault(sequence.number, []).append(scores)  # LEAK
        sequence.cache = torch.cat([sequence.cache, hidden])
        sequence.produced += 1

    @torch.inference_mode()
    def step(self):
        still = []
        for sequence in self.running:
            self.advance(sequence)
            if sequence.produced == sequence.ends_after:
                self.logprobs.pop(sequence.number, None)
            elif sequence.produced < sequence.limit:
                still.append(sequence)
        self.running = still


def main():
    torch.manual_seed(36)
    torch.set_num_threads(1)
    rng = random.Random(36)
    engine = Engine(sys.argv[1])
    number = 0
    for _ in range(700):
        while len(engine.running) < 6:
            limit = rng.choice([10, 20, 30])
            options = {"limit": limit, "ends_after": rng.randint(5, 35), "wants_logprobs": rng.random() < 0.4}
            engine.submit(number, rng.randint(10, 60), **options)
            number += 1
        engine.step()
    print(f"{number} requests")


if __name__ == "__main__":
    main()
