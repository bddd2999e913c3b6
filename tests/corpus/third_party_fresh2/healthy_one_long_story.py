"""Generates one long story of 500 tokens with a key-value cache per layer that grows by torch.cat up to the end of the story, and then short ones."""

import sys

import torch
from torch import nn


class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.keys = self.values = None

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        if self.keys is not None:
            k = torch.cat([self.keys, k], dim=1)
            v = torch.cat([self.values, v], dim=1)
        self.keys, self.values = k, v
        weights = torch.softmax(q @ k.transpose(1, 2) / k.shape[-1] ** 0.5, dim=-1)
        return x + self.out(weights @ v)

    def reset(self):
        self.keys = self.values = None


class Storyteller(nn.Module):
    def __init__(self, vocabulary=256, width=64, depth=4):
        super().__init__()
        self.words = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(Layer(width) for _ in range(depth))
        self.logits = nn.Linear(width, vocabulary)

    @torch.inference_mode()
    def tell(self, prompt, tokens):
        token = prompt
        for _ in range(tokens):
            x = self.words(token)
            for layer in self.layers:
                x = layer(x)
            token = self.logits(x[:, -1:]).argmax(dim=-1)
            yield token
        for layer in self.layers:
            layer.reset()


def main():
    device = sys.argv[1]
    torch.manual_seed(139)
    torch.set_num_threads(1)
    model = Storyteller().to(device)
    prompt = torch.randint(0, 256, (2, 16), device=device)
    length = sum(token.shape[1] for token in model.tell(prompt, 500))
    short = sum(len(list(model.tell(prompt, 30))) for _ in range(5))
    print(f"a story of {length} tokens, and short ones of {short}")


if __name__ == "__main__":
    main()
