"""Translates sentences by beam search. Hypotheses point back to their parents, and each has its decoder state.

The translation memory should keep texts; it keeps the best hypothesis of each sentence,
and thereby the states of the whole chain.
"""

import random
import sys

import torch
from torch import nn


class Hypothesis:
    __slots__ = ("parent", "score", "state", "token")

    def __init__(self, parent, token, score, state):
        self.parent = parent
        self.token = token
        self.score = score
        self.state = state

    def tokens(self):
        node, found = self, []
        while node.parent is not None:
            found.append(node.token)
            node = node.parent
        return found[::-1]


class Translator:
    def __init__(self, device, rng, width=384, vocabulary=600):
        self.device = device
        self.rng = rng
        self.embed = nn.Embedding(vocabulary, width).to(device)
        self.cell = nn.GRUCell(width, width).to(device)
        self.vocabulary = vocabulary
        self.memory = {}

    def expand(self, hypothesis, width):
        last = torch.tensor([hypothesis.token], device=self.device)
        state = self.cell(self.embed(last), hypothesis.state)  # LEAK
        # A stand-in for the scores of a real model.
        for _ in range(width):
            token = self.rng.randrange(self.vocabulary)
            yield Hypothesis(hypothesis, token, hypothesis.score - self.rng.random(), state)

    @torch.inference_mode()
    def translate(self, sentence, length, width=3):
        source = torch.tensor(sentence, device=self.device)
        start = Hypothesis(None, 0, 0.0, self.embed(source).mean(0, keepdim=True))  # LEAK
        beam = [start]
        for _ in range(length):
            candidates = [child for hypothesis in beam for child in self.expand(hypothesis, width)]
            beam = sorted(candidates, key=lambda candidate: -candidate.score)[:width]
        self.memory[tuple(sentence)] = beam[0]  # LEAK
        return beam[0].tokens()


def main():
    torch.manual_seed(22)
    torch.set_num_threads(1)
    rng = random.Random(22)
    translator = Translator(sys.argv[1], rng)
    words = 0
    for _ in range(180):
        sentence = [rng.randrange(600) for _ in range(rng.randint(4, 12))]
        words += len(translator.translate(sentence, length=len(sentence)))
    print(f"{words} words, {len(translator.memory)} sentences in memory")


if __name__ == "__main__":
    main()
