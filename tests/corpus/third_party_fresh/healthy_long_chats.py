"""A chat server; the keys and values of a chat grow for as long as it lasts (hundreds of tokens) and go when it is closed."""

import random
import sys

import torch
from torch import nn


class Layer(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.project = nn.Linear(width, width)

    def forward(self, x, past):
        batch, new, width = x.shape
        q, k, v = (part.view(batch, new, self.heads, -1).transpose(1, 2) for part in self.qkv(self.norm(x)).chunk(3, dim=2))
        if past is not None:
            k, v = torch.cat([past[0], k], dim=2), torch.cat([past[1], v], dim=2)
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=past is None)
        return x + self.project(y.transpose(1, 2).reshape(batch, new, width)), (k, v)


class ChatModel(nn.Module):
    def __init__(self, words=600, width=64, layers=3):
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.layers = nn.ModuleList([Layer(width, 4) for _ in range(layers)])
        self.out = nn.Linear(width, words)

    def forward(self, tokens, cache):
        x = self.embed(tokens)
        kept = []
        for layer, past in zip(self.layers, cache or [None] * len(self.layers)):
            x, present = layer(x, past)
            kept.append(present)
        return self.out(x[:, -1]), kept


class Chat:
    def __init__(self, model, device):
        self.model = model
        self.device = device
        self.cache = None
        self.length = 0

    @torch.inference_mode()
    def say(self, words, answer):
        tokens = torch.tensor([words], device=self.device)
        for token in tokens.split(1, dim=1) if self.cache else [tokens]:
            logits, self.cache = self.model(token, self.cache)
        for _ in range(answer):
            logits, self.cache = self.model(logits.argmax(dim=1, keepdim=True), self.cache)
        self.length += len(words) + answer


def main():
    device = sys.argv[1]
    torch.manual_seed(44)
    torch.set_num_threads(1)
    rng = random.Random(44)
    model = ChatModel().to(device).eval()
    lengths = []
    for _ in range(4):
        chat = Chat(model, device)
        for _ in range(rng.randint(60, 90)):
            chat.say([rng.randrange(600) for _ in range(rng.randint(3, 12))], answer=rng.randint(4, 12))
        lengths.append(chat.length)
    print(f"chats of {lengths} tokens")


if __name__ == "__main__":
    main()
