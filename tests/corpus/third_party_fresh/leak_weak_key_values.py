"""Answers questions about documents; what was computed of a document is in a WeakKeyDictionary, to go with the document.

The value holds its document (for the title), so the key is never without a strong reference.
"""

import random
import sys
import weakref

import torch
from torch import nn


class Document:
    def __init__(self, title, tokens):
        self.title = title
        self.tokens = tokens


class Encoded:
    def __init__(self, document, vectors):
        self.document = document
        self.vectors = vectors

    def passage(self, start, length):
        return f"{self.document.title}:{start}-{min(start + length, len(self.document.tokens))}"


class Answerer:
    def __init__(self, device, words=1500, width=40):
        self.device = device
        self.embed = nn.Embedding(words, width).to(device)
        self.context = nn.Conv1d(width, width, 7, padding=3).to(device)
        self.encoded = weakref.WeakKeyDictionary()

    def encode(self, tokens):
        x = self.embed(torch.tensor(tokens, device=self.device))
        x = self.context(x.T.unsqueeze(0)).squeeze(0).T
        return nn.functional.normalize(x, dim=1)  # LEAK

    @torch.inference_mode()
    def answer(self, document, question):
        entry = self.encoded.get(document)
        if entry is None:
            entry = Encoded(document, self.encode(document.tokens))  # LEAK
            self.encoded[document] = entry  # LEAK
        wanted = self.encode(question).mean(dim=0)
        scores = (entry.vectors @ wanted).unfold(0, 8, 4).mean(dim=1)
        return entry.passage(4 * scores.argmax().item(), 8)


def main():
    device = sys.argv[1]
    torch.manual_seed(21)
    torch.set_num_threads(1)
    rng = random.Random(21)
    answerer = Answerer(device)
    passages = set()
    for upload in range(800):
        tokens = [rng.randrange(1500) for _ in range(rng.randint(60, 400))]
        document = Document(f"document {upload}", tokens)
        for _ in range(rng.randint(1, 5)):
            question = [rng.randrange(1500) for _ in range(rng.randint(4, 12))]
            passages.add(answerer.answer(document, question))  # LEAK
    print(f"{len(passages)} passages")


if __name__ == "__main__":
    main()
