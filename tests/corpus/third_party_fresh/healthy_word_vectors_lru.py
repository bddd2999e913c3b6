"""Classifies messages; vectors of words are made from their letters and kept in an lru_cache of 6000, which does not fill in the run."""

import functools
import random
import string
import sys

import torch
from torch import nn


class LetterEncoder(nn.Module):
    def __init__(self, width=48):
        super().__init__()
        self.letters = nn.Embedding(27, width)
        self.conv = nn.Conv1d(width, 4 * width, 3, padding=1)

    def forward(self, codes):
        return self.conv(self.letters(codes).T.unsqueeze(0)).amax(dim=2).squeeze(0)


class MessageClassifier:
    def __init__(self, device, classes=5):
        self.device = device
        self.encoder = LetterEncoder().to(device).eval()
        self.topic = nn.Linear(192, classes).to(device).eval()
        self.word_vector = functools.lru_cache(maxsize=6000)(self._word_vector)

    def _word_vector(self, word):
        codes = torch.tensor([ord(letter) - 96 for letter in word], device=self.device)
        return self.encoder(codes)

    @torch.inference_mode()
    def classify(self, message):
        vectors = torch.stack([self.word_vector(word) for word in message])
        return self.topic(vectors.mean(dim=0)).argmax().item()


def make_words(rng, count):
    return sorted({"".join(rng.choices(string.ascii_lowercase, k=rng.randint(3, 9))) for _ in range(count)})


def main():
    device = sys.argv[1]
    torch.manual_seed(43)
    torch.set_num_threads(1)
    rng = random.Random(43)
    words = make_words(rng, 40_000)
    frequent, rare = words[::40], words
    classifier = MessageClassifier(device)
    counts = [0] * 5
    for _ in range(900):
        length = rng.randint(6, 20)
        message = [rng.choice(rare) if rng.random() < 0.25 else rng.choice(frequent) for _ in range(length)]
        counts[classifier.classify(message)] += 1
    info = classifier.word_vector.cache_info()
    print(counts, info.hits, info.misses)


if __name__ == "__main__":
    main()
