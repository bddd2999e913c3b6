"""Loads a language model layer by layer, merges an adapter into each, quantizes and moves it to the device; then answers a little."""

import sys

import torch
from torch import nn


class QuantizedLinear:
    def __init__(self, weight, device, group=32):
        rows, columns = weight.shape
        grouped = weight.view(rows, columns // group, group)
        scale = grouped.abs().amax(dim=2, keepdim=True).clamp_min(1e-6) / 127
        self.codes = (grouped / scale).round().to(torch.int8).to(device)
        self.scale = scale.to(device)
        self.shape = weight.shape

    def __call__(self, x):
        return x @ (self.codes * self.scale).view(self.shape).T


class QuantizedLayer:
    def __init__(self, weights, device):
        self.up = QuantizedLinear(weights["up"], device)
        self.down = QuantizedLinear(weights["down"], device)

    def __call__(self, x):
        return x + self.down(nn.functional.silu(self.up(nn.functional.layer_norm(x, x.shape[-1:]))))


class Checkpoint:
    """Stands for a file of shards with a low-rank adapter beside it."""

    def __init__(self, layers, width, seed):
        self.layers = layers
        self.width = width
        self.generator = torch.Generator().manual_seed(seed)

    def _random(self, *shape):
        return torch.randn(*shape, generator=self.generator) / shape[-1] ** 0.5

    def embeddings(self):
        return self._random(1000, self.width)

    def read_layer(self):
        return {"up": self._random(4 * self.width, self.width), "down": self._random(self.width, 4 * self.width)}

    def read_adapter(self):
        return {name: (self._random(rows, 8), self._random(8, columns)) for name, rows, columns in
                [("up", 4 * self.width, self.width), ("down", self.width, 4 * self.width)]}


def load(checkpoint, device):
    layers = []
    for _ in range(checkpoint.layers):
        weights, adapter = checkpoint.read_layer(), checkpoint.read_adapter()
        for name, (a, b) in adapter.items():
            weights[name] = weights[name].addmm(a, b, alpha=0.5)
        layers.append(QuantizedLayer(weights, device))
    return layers, checkpoint.embeddings().to(device)


@torch.inference_mode()
def answer(layers, embeddings, words, device):
    state = embeddings[torch.tensor(words, device=device)].mean(dim=0, keepdim=True)
    for _ in range(4):
        for layer in layers:
            state = layer(state)
        words.append((state @ embeddings.T).argmax().item())
        state = 0.5 * state + embeddings[words[-1]]
    return words


def main():
    device = sys.argv[1]
    torch.manual_seed(49)
    torch.set_num_threads(1)
    layers, embeddings = load(Checkpoint(layers=150, width=128, seed=49), device)
    words = 0
    for question in range(30):
        words += len(answer(layers, embeddings, [question, 2 * question + 1, 500 - question], device))
    print(f"{len(layers)} layers, {words} words")


if __name__ == "__main__":
    main()
