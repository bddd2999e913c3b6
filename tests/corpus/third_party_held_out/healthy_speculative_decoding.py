"""Speculative decoding: a draft model proposes four tokens, the target accepts some, the caches are cut back."""

import random
import sys

import torch
from torch import nn

import pytorch_alloctrace as alloctrace


class CachedModel:
    def __init__(self, width, device):
        self.layer = nn.Linear(width, 2 * width).to(device)
        self.width = width
        self.cache = None

    def start(self, prompt):
        self.cache = self.layer(prompt)

    def extend(self, tokens):
        new = self.layer(tokens)
        self.cache = torch.cat([self.cache, new])
        keys, values = self.cache.chunk(2, dim=-1)
        return torch.softmax(tokens @ keys.T / self.width**0.5, dim=-1) @ values

    def truncate(self, length):
        # A copy, so that the longer cache is freed.
        self.cache = self.cache[:length].clone()

    def stop(self):
        self.cache = None


class SpeculativeDecoder:
    def __init__(self, device, rng, ahead=4):
        self.device = device
        self.rng = rng
        self.ahead = ahead
        self.draft = CachedModel(32, device)
        self.target = CachedModel(32, device)

    @torch.inference_mode()
    def generate(self, prompt_length, tokens):
        prompt = torch.randn(prompt_length, 32, device=self.device)
        self.draft.start(prompt)
        self.target.start(prompt)
        length = prompt_length
        while length < prompt_length + tokens:
            proposals = torch.randn(1, 32, device=self.device)
            for _ in range(self.ahead - 1):
                proposals = torch.cat([proposals, self.draft.extend(proposals[-1:])])
            self.target.extend(proposals)
            length += self.rng.randint(1, self.ahead)
            self.draft.truncate(min(length, len(self.draft.cache)))
            self.target.truncate(min(length, len(self.target.cache)))
        self.draft.stop()
        self.target.stop()
        return length - prompt_length


def main():
    torch.manual_seed(72)
    torch.set_num_threads(1)
    rng = random.Random(72)
    decoder = SpeculativeDecoder(sys.argv[1], rng)
    made = 0
    for _request in range(200):
        made += decoder.generate(rng.randint(10, 80), rng.randint(10, 40))
        alloctrace.step()
    print(f"{made} tokens")


if __name__ == "__main__":
    main()
