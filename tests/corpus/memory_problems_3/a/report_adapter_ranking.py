"""Ranks the adapters that a hyper-parameter sweep left behind by how well they answer a set of prompts."""
import asyncio
from dataclasses import dataclass

import torch
from torch import nn

from lora_layers import LoraModel

TARGETS = ("query", "key", "value", "output", "up", "down")


class DecoderLayer(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.output = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)

    def split(self, x):
        return x.view(*x.shape[:2], self.heads, -1).transpose(1, 2)

    def forward(self, x):
        normed = self.norm_1(x)
        attended = nn.functional.scaled_dot_product_attention(
            self.split(self.query(normed)), self.split(self.key(normed)), self.split(self.value(normed)), is_causal=True
        )
        x = x + self.output(attended.transpose(1, 2).flatten(2))
        return x + self.down(nn.functional.gelu(self.up(self.norm_2(x))))


class Decoder(nn.Module):
    context = 128

    def __init__(self, vocabulary=16000, width=768, layers=8, heads=12):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.blocks = nn.Sequential(*(DecoderLayer(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens):
        return self.head(self.norm(self.blocks(self.tokens(tokens))))


@dataclass
class SweepEntry:
    name: str
    rank: int
    learning_rate: float


class AdapterStore:
    """Stands for the bucket where the sweep wrote its adapters."""

    async def entries(self):
        for number in range(36):
            await asyncio.sleep(0)
            yield SweepEntry(f"sweep-{number:03d}", rank=(16, 32, 64)[number % 3], learning_rate=10 ** (-4 + number / 18))

    async def download(self, entry, layers):
        await asyncio.sleep(0.002)
        weights = {}
        for path, layer in layers.items():
            weights[path + ".lora_A"] = torch.randn(entry.rank, layer.base.in_features) * 0.01
            weights[path + ".lora_B"] = torch.randn(layer.base.out_features, entry.rank) * 0.01
        return weights


class Evaluator:
    def __init__(self, model, prompts, answers):
        self.model = model
        self.prompts = prompts
        self.answers = answers
        self.lock = asyncio.Lock()

    async def score(self, entry, weights):
        async with self.lock:
            self.model.load_adapter(entry.name, weights, entry.rank)
            self.model.set_adapter(entry.name)
            tokens = self.model.generate(self.prompts, new_tokens=self.answers.shape[1])
            return (tokens[:, self.prompts.shape[1] :] == self.answers).float().mean().item()


async def rank_adapters():
    model = LoraModel(Decoder().cuda().eval(), TARGETS)
    prompts = torch.randint(0, 16000, (16, 48), device="cuda")
    answers = torch.randint(0, 16000, (16, 24), device="cuda")
    evaluator, store, scores = Evaluator(model, prompts, answers), AdapterStore(), {}
    print(f"base model: {torch.cuda.memory_allocated() / 2**20:.0f} MiB")
    async for entry in store.entries():
        weights = await store.download(entry, model.layers())
        scores[entry.name] = await evaluator.score(entry, weights)
        print(f"{entry.name}: rank {entry.rank}, score {scores[entry.name]:.3f}, "
              f"{torch.cuda.memory_allocated() / 2**20:.0f} MiB allocated")
    return sorted(scores, key=scores.get, reverse=True)


if __name__ == "__main__":
    torch.manual_seed(0)
    print("best adapters:", asyncio.run(rank_adapters())[:5])
