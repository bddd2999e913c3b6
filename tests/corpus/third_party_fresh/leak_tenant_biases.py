"""Serves a shared text classifier to tenants; the bias of a tenant is mixed in by a forward hook made for the request.

The hook minds only the requests of its own number, but nobody removes it, and it holds the bias.
"""

import functools
import random
import sys

import torch
from torch import nn


class Backbone(nn.Module):
    def __init__(self, words=800, width=64, classes=12):
        super().__init__()
        self.words = nn.EmbeddingBag(words, width)
        self.block = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.head = nn.Linear(width, classes)
        self.serving = None

    def forward(self, tokens):
        h = self.words(tokens)
        return self.head(h + self.block(h))


def add_bias(module, args, output, *, backbone, number, bias):
    if backbone.serving == number:
        return output + bias[: len(output)]
    return None


class Service:
    def __init__(self, device):
        self.device = device
        self.backbone = Backbone().to(device).eval()
        self.profile = nn.Sequential(nn.Linear(20, 64), nn.Tanh(), nn.Linear(64, 64)).to(device).eval()
        self.requests = 0

    @torch.inference_mode()
    def classify(self, tokens, tenant_profile):
        self.requests += 1
        bias = self.profile(tenant_profile)  # LEAK
        hook = functools.partial(add_bias, backbone=self.backbone, number=self.requests, bias=bias)
        self.backbone.block.register_forward_hook(hook)  # LEAK
        self.backbone.serving = self.requests
        return self.backbone(tokens).argmax(dim=1).tolist()


def main():
    device = sys.argv[1]
    torch.manual_seed(13)
    torch.set_num_threads(1)
    rng = random.Random(13)
    service = Service(device)
    counts = [0] * 12
    for _ in range(1500):
        texts = rng.randint(4, 24)
        tokens = torch.randint(0, 800, (texts, 30), device=device)
        profile = torch.randn(24, 20, device=device)
        for label in service.classify(tokens, profile):  # LEAK
            counts[label] += 1
    print(counts)


if __name__ == "__main__":
    main()
