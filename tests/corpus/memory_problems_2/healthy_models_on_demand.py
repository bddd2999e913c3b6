"""Healthy: a translation service that loads the model of a language pair when it is first asked for.

Why it may look like a leak: memory climbs request by request while new language pairs appear.
Why it is none: at most MAX_LOADED models are on the GPU; the least recently used one goes back to the CPU.
"""
import random
from collections import Counter, OrderedDict

import torch
from torch import nn

MAX_LOADED = 5
PAIRS = tuple(f"{a}-{b}" for a in ("de", "en", "fr", "it") for b in ("de", "en", "fr", "it") if a != b)


class PairModel(nn.Module):
    def __init__(self, vocabulary=4000, width=512, layers=3):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.layers = nn.Sequential(*[
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.ReLU(), nn.Linear(4 * width, width))
            for _ in range(layers)
        ])
        self.output = nn.Linear(width, vocabulary)

    def forward(self, tokens):
        return self.output(self.layers(self.embed(tokens)))


class ModelPool:
    """Models by language pair; on the GPU those used last."""

    def __init__(self, device, max_loaded=MAX_LOADED):
        self.device = device
        self.max_loaded = max_loaded
        self.on_device = OrderedDict()
        self.on_host = {}
        self.moves = Counter()

    def load(self, pair):
        model = self.on_host.pop(pair, None)
        if model is None:
            model = PairModel().eval().requires_grad_(False)
            self.moves["created"] += 1
        return model

    def get(self, pair):
        if pair in self.on_device:
            self.on_device.move_to_end(pair)
            self.moves["hit"] += 1
            return self.on_device[pair]
        while len(self.on_device) >= self.max_loaded:
            old_pair, old_model = self.on_device.popitem(last=False)
            self.on_host[old_pair] = old_model.to("cpu")
            self.moves["evicted"] += 1
        model = self.load(pair).to(self.device)
        self.on_device[pair] = model
        return model


class TranslationService:
    def __init__(self, pool, max_tokens=64):
        self.pool = pool
        self.max_tokens = max_tokens
        self.statistics = Counter()

    @torch.inference_mode()
    def translate(self, pair, sentences):
        model = self.pool.get(pair)
        longest = max(len(sentence) for sentence in sentences)
        tokens = torch.zeros(len(sentences), min(longest, self.max_tokens), dtype=torch.long)
        for row, sentence in enumerate(sentences):
            length = min(len(sentence), tokens.shape[1])
            tokens[row, :length] = torch.tensor(sentence[:length])
        best = model(tokens.to(self.pool.device)).argmax(dim=-1)
        self.statistics[pair] += len(sentences)
        return best.cpu().tolist()


def traffic(requests, seed=0):
    """The pairs come into use one after the other in the course of the day; some are much more frequent."""
    generator = random.Random(seed)
    for number in range(requests):
        known = PAIRS[: 1 + min(len(PAIRS) - 1, number // 12)]
        pair = generator.choice(known[-4:] if generator.random() < 0.8 else known)
        sentences = [[generator.randrange(1, 4000) for _ in range(generator.randrange(5, 60))]
                     for _ in range(generator.randrange(1, 17))]
        yield pair, sentences


def main(requests=240):
    torch.manual_seed(0)
    service = TranslationService(ModelPool(torch.device("cuda")))
    for number, (pair, sentences) in enumerate(traffic(requests), start=1):
        service.translate(pair, sentences)
        if number % 40 == 0:
            print(f"{number} requests, {len(service.pool.on_device)} models loaded, {dict(service.pool.moves)}, "
                  f"{torch.cuda.memory_allocated() / 2**20:.0f} MiB")
    print("max allocated", torch.cuda.max_memory_allocated() // 2**20, "MiB")


if __name__ == "__main__":
    main()
