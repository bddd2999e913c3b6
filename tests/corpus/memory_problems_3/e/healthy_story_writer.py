"""Interactive story continuation: each request has its own key/value cache that lives until the story is finished."""
import argparse
import random

import torch
import torch.nn.functional as F
from torch import nn

CONTEXT = 1024


class Layer(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x, cache):
        b, t, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        if cache is not None:
            k = torch.cat([cache[0], k], dim=2)[:, :, -CONTEXT:]
            v = torch.cat([cache[1], v], dim=2)[:, :, -CONTEXT:]
        a = F.scaled_dot_product_attention(q, k, v, is_causal=cache is None)
        x = x + self.out(a.transpose(1, 2).reshape(b, t, d))
        return x + self.mlp(self.norm2(x)), (k, v)


class StoryModel(nn.Module):
    def __init__(self, vocab=20000, dim=768, depth=10, heads=12):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.layers = nn.ModuleList(Layer(dim, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(dim)

    def forward(self, ids, caches=None):
        x = self.embed(ids)
        new = []
        for i, layer in enumerate(self.layers):
            x, cache = layer(x, caches[i] if caches else None)
            new.append(cache)
        return self.norm(x[:, -1]) @ self.embed.weight.T, new


class Story:
    def __init__(self, model, prompt):
        self.model = model
        self.tokens = prompt.tolist()
        logits, self.caches = model(prompt.unsqueeze(0).cuda())
        self.next = logits.argmax(-1, keepdim=True)

    def extend(self, n):
        for _ in range(n):
            logits, self.caches = self.model(self.next, self.caches)
            self.next = logits.argmax(-1, keepdim=True)
            self.tokens.append(self.next.item())


def write_story(model, turns, rng):
    story = Story(model, torch.randint(0, 20000, (rng.randint(200, 600),)))
    for _ in range(turns):
        story.extend(rng.randint(15, 30))
    return len(story.tokens)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--stories", type=int, default=8)
    parser.add_argument("--turns", type=int, default=5)
    args = parser.parse_args()
    rng = random.Random(0)
    with torch.device("cuda"):
        model = StoryModel().eval()
    with torch.inference_mode():
        for number in range(args.stories):
            length = write_story(model, args.turns, rng)
            print(f"story {number}: {length} tokens")


if __name__ == "__main__":
    main()
