"""A translation worker whose requests and plans refer to each other; after each reload of the glossary it calls gc.freeze().

The freeze is meant for the glossary (less work for the collector), but what is garbage in cycles at that time is frozen with it.
"""

import gc
import random
import sys

import torch
from torch import nn


class Plan:
    def __init__(self, request, encoded):
        self.request = request
        self.encoded = encoded
        self.chosen = []


class Request:
    def __init__(self, number, sentences):
        self.number = number
        self.sentences = sentences
        self.plan = None


class Worker:
    def __init__(self, device, words=900, width=64):
        self.device = device
        self.words = words
        self.embed = nn.Embedding(words, width).to(device)
        self.encoder = nn.GRU(width, width, batch_first=True).to(device)
        self.output = nn.Linear(width, words).to(device)
        self.glossary = {}

    def reload_glossary(self, rng):
        self.glossary = {rng.randrange(self.words): rng.randrange(self.words) for _ in range(100)}
        gc.freeze()  # LEAK

    def encode(self, sentences):
        states, _ = self.encoder(self.embed(sentences))  # LEAK
        return states

    @torch.inference_mode()
    def translate(self, request):
        request.plan = Plan(request, self.encode(request.sentences))  # LEAK
        best = self.output(request.plan.encoded).argmax(dim=2).tolist()
        for sentence in best:
            request.plan.chosen.append([self.glossary.get(word, word) for word in sentence])
        return sum(len(sentence) for sentence in request.plan.chosen)


def main():
    device = sys.argv[1]
    torch.manual_seed(22)
    torch.set_num_threads(1)
    rng = random.Random(22)
    worker = Worker(device)
    worker.reload_glossary(rng)
    translated = 0
    for number in range(2000):
        if number % 16 == 15:
            worker.reload_glossary(rng)  # LEAK
        sentences = torch.randint(0, 900, (rng.randint(1, 6), rng.randint(5, 30)), device=device)
        translated += worker.translate(Request(number, sentences))  # LEAK
    print(f"{translated} words")


if __name__ == "__main__":
    main()
