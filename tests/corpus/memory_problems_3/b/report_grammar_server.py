"""An asyncio server that generates JSON under a schema given with each request, with continuous batching."""
import asyncio
import random
import time

import torch
from torch import nn

from grammar_engine import GrammarCompiler

VOCAB = 128_256
DEVICE = "cuda"


class Request:
    def __init__(self, rid, prompt, schema, max_tokens):
        self.rid = rid
        self.prompt = prompt
        self.schema = schema
        self.max_tokens = max_tokens
        self.output = []
        self.grammar = None
        self.arrived = time.perf_counter()
        self.first_token = None
        self.finished_at = None
        self.done = asyncio.get_running_loop().create_future()


class TinyLM(nn.Module):
    def __init__(self, width=256):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, width)
        self.cell = nn.GRUCell(width, width)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, VOCAB, bias=False)

    def forward(self, tokens, hidden):
        hidden = self.cell(self.embed(tokens), hidden)
        return self.head(self.norm(hidden)), hidden


class ServerMetrics:
    def __init__(self):
        self.finished = []

    def observe(self, request):
        self.finished.append(request)

    def report(self):
        ttft = [r.first_token - r.arrived for r in self.finished]
        tokens = sum(len(r.output) for r in self.finished)
        return f"{len(ttft)} requests, {tokens} tokens, mean time to first token {sum(ttft) / len(ttft):.3f} s"


class Scheduler:
    def __init__(self, model, slots=8):
        self.model = model
        self.compiler = GrammarCompiler(VOCAB, DEVICE)
        self.metrics = ServerMetrics()
        self.waiting = asyncio.Queue()
        self.running = [None] * slots
        self.hidden = torch.zeros(slots, 256, device=DEVICE)
        self.mask = torch.ones(slots, VOCAB, dtype=torch.bool, device=DEVICE)
        self.tokens = torch.zeros(slots, dtype=torch.long, device=DEVICE)

    @torch.inference_mode()
    def admit(self):
        for slot, request in enumerate(self.running):
            if request is None and not self.waiting.empty():
                request = self.waiting.get_nowait()
                request.grammar = self.compiler.compile(request.schema)
                self.running[slot] = request
                self.hidden[slot].zero_()
                self.tokens[slot] = request.prompt[-1]

    def finish(self, slot, request):
        request.finished_at = time.perf_counter()
        self.metrics.observe(request)
        self.running[slot] = None
        self.mask[slot].fill_(True)
        request.done.set_result(request.output)

    @torch.inference_mode()
    def step(self):
        logits, self.hidden = self.model(self.tokens, self.hidden)
        for slot, request in enumerate(self.running):
            if request is not None:
                request.grammar.fill_mask(self.mask[slot])
        logits.masked_fill_(~self.mask, float("-inf"))
        self.tokens = torch.argmax(logits, dim=-1)
        sampled = self.tokens.tolist()
        for slot, request in enumerate(self.running):
            if request is None:
                continue
            request.first_token = request.first_token or time.perf_counter()
            request.output.append(sampled[slot])
            request.grammar.accept(sampled[slot])
            if request.grammar.finished() or len(request.output) >= request.max_tokens:
                self.finish(slot, request)

    async def loop(self):
        while True:
            self.admit()
            if any(self.running):
                self.step()
            await asyncio.sleep(0)

    async def generate(self, request):
        await self.waiting.put(request)
        return await request.done


async def client(scheduler, index, rng):
    await asyncio.sleep(rng.random() * 1.5)
    fields = {f"field_{i}": {"type": "string"} for i in range(rng.randint(3, 9))}
    request = Request(f"req-{index}", [rng.randrange(1000) for _ in range(16)],
                      {"type": "object", "properties": fields}, max_tokens=rng.randint(8, 24))
    return len(await scheduler.generate(request))


async def main():
    rng = random.Random(5)
    scheduler = Scheduler(TinyLM().to(DEVICE).eval())
    engine = asyncio.create_task(scheduler.loop())
    lengths = await asyncio.gather(*(client(scheduler, i, rng) for i in range(320)))
    engine.cancel()
    print(scheduler.metrics.report())
    print(f"{sum(lengths)} tokens sent, {torch.cuda.memory_allocated() / 2**20:.0f} MiB allocated")


if __name__ == "__main__":
    asyncio.run(main())
