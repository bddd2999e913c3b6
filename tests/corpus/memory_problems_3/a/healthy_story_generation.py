"""Samples stories token by token; keys and values of a story are appended to while it is written."""
import argparse

import torch
import torch.nn.functional as F
from torch import nn


class Cache:
    def __init__(self, layers):
        self.keys = [None] * layers
        self.values = [None] * layers

    def append(self, layer, k, v):
        if self.keys[layer] is None:
            self.keys[layer], self.values[layer] = k, v
        else:
            self.keys[layer] = torch.cat([self.keys[layer], k], dim=2)
            self.values[layer] = torch.cat([self.values[layer], v], dim=2)
        return self.keys[layer], self.values[layer]

    def reorder(self, beams):
        self.keys = [keys.index_select(0, beams) for keys in self.keys]
        self.values = [values.index_select(0, beams) for values in self.values]


class Writer(nn.Module):
    def __init__(self, vocabulary=12000, width=768, heads=12, layers=8):
        super().__init__()
        self.heads = heads
        self.words = nn.Embedding(vocabulary, width)
        self.qkv = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(layers))
        self.out = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.mlp = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
            for _ in range(layers)
        )

    def forward(self, tokens, cache):
        x = self.words(tokens)
        batch, length, width = x.shape
        for number, (qkv, out, mlp) in enumerate(zip(self.qkv, self.out, self.mlp)):
            q, k, v = qkv(x).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
            k, v = cache.append(number, k, v)
            x = x + out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(batch, length, width))
            x = x + mlp(x)
        return x[:, -1] @ self.words.weight.t()


@torch.inference_mode()
def write(model, prompt, new_tokens, temperature):
    cache = Cache(len(model.qkv))
    logits = model(prompt, cache)
    story = [prompt]
    for position in range(new_tokens):
        probabilities = (logits / temperature).softmax(dim=-1)
        token = probabilities.argmax(dim=-1, keepdim=True).clamp(0, 11999)
        story.append(token)
        logits = model(token, cache)
        if position % 16 == 15:
            cache.reorder(torch.arange(len(prompt), device=prompt.device))
    return torch.cat(story, dim=1).cpu()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--stories", type=int, default=5)
    parser.add_argument("--beams", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=160)
    arguments = parser.parse_args()
    with torch.device("cuda"):
        model = Writer().eval()
    for story in range(arguments.stories):
        prompt = torch.randint(0, 12000, (arguments.beams, 64 + 32 * story)).cuda()
        text = write(model, prompt, arguments.tokens, temperature=0.8)
        print(f"story {story}: {text.shape[1]} tokens, now {torch.cuda.memory_allocated() >> 20} MiB, "
              f"peak {torch.cuda.max_memory_allocated() >> 20} MiB")


if __name__ == "__main__":
    main()
