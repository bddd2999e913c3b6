import asyncio
import itertools
from dataclasses import dataclass, field

import torch
from torch import nn
from torch.nn import functional as F


class CausalLM(nn.Module):
    def __init__(self, vocabulary=8000, width=512, heads=8, layers=8):
        super().__init__()
        self.heads = heads
        self.embedding = nn.Embedding(vocabulary, width)
        self.qkv = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(layers))
        self.out = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.head = nn.Linear(width, vocabulary)

    def forward(self, ids, cache):
        x = self.embedding(ids)
        batch, length, width = x.shape
        for index, (qkv, out) in enumerate(zip(self.qkv, self.out)):
            q, k, v = qkv(x).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
            if cache[index] is not None:
                k = torch.cat([cache[index][0], k], dim=2)
                v = torch.cat([cache[index][1], v], dim=2)
            cache[index] = (k, v)
            attended = F.scaled_dot_product_attention(q, k, v)
            x = x + out(attended.transpose(1, 2).reshape(batch, length, width))
        return self.head(x[:, -1])


@dataclass
class Sequence:
    seq_id: int
    prompt: list
    max_tokens: int
    cache: list
    output: list = field(default_factory=list)
    done: asyncio.Event = field(default_factory=asyncio.Event)


class IOProcessor:
    """Turns requests into sequences and finished sequences into text."""

    def __init__(self, layers):
        self.layers = layers
        self.requests = {}
        self._ids = itertools.count()

    def preprocess(self, prompt, max_tokens):
        sequence = Sequence(next(self._ids), prompt, max_tokens, [None] * self.layers)
        self.requests[sequence.seq_id] = sequence
        return sequence

    def postprocess(self, sequence):
        return {"text": " ".join(str(t) for t in sequence.output), "tokens": len(sequence.output)}


class Engine:
    def __init__(self, model, max_running=4):
        self.model = model
        self.io_processor = IOProcessor(len(model.qkv))
        self.waiting = asyncio.Queue()
        self.running = []
        self.max_running = max_running

    @torch.inference_mode()
    def advance(self, sequence):
        ids = sequence.prompt if not sequence.output else sequence.output[-1:]
        logits = self.model(torch.tensor([ids]).cuda(), sequence.cache)
        sequence.output.append(int(logits.argmax(dim=-1).item()) % 8000)
        return len(sequence.output) >= sequence.max_tokens

    async def loop(self):
        while True:
            while len(self.running) < self.max_running and (self.running == [] or not self.waiting.empty()):
                self.running.append(await self.waiting.get())
            finished = [s for s in self.running if self.advance(s)]
            for sequence in finished:
                self.running.remove(sequence)
                sequence.done.set()
            await asyncio.sleep(0)

    async def generate(self, prompt, max_tokens):
        sequence = self.io_processor.preprocess(prompt, max_tokens)
        try:
            await self.waiting.put(sequence)
        except Exception:
            self.io_processor.requests.pop(sequence.seq_id, None)
            raise
        await sequence.done.wait()
        return self.io_processor.postprocess(sequence)

    def pending(self):
        return sum(not s.done.is_set() for s in self.io_processor.requests.values())
