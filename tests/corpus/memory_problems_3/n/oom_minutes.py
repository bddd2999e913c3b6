import sys
import time
from dataclasses import dataclass

import torch

from minutes.decoding import Summariser
from minutes.model import MinutesLM

VOCAB = 128256


@dataclass
class Meeting:
    title: str
    length: int
    seed: int

    def tokens(self):
        generator = torch.Generator().manual_seed(self.seed)
        return torch.randint(16, VOCAB, (self.length,), generator=generator)


def calendar(count, seed):
    generator = torch.Generator().manual_seed(seed)
    kinds = [("stand-up", 220, 420), ("one-on-one", 500, 900), ("review", 1100, 1700), ("all hands", 2400, 3000)]
    meetings = []
    for i in range(count):
        name, low, high = kinds[i * len(kinds) // count]
        length = int(torch.randint(low, high, (1,), generator=generator))
        meetings.append(Meeting(f"{name} {i}", length, seed * 1000 + i))
    return meetings


def batches(meetings, size):
    ordered = sorted(meetings, key=lambda m: m.length)
    for i in range(0, len(ordered), size):
        yield ordered[i:i + size]


def pad_left(rows, pad=0):
    width = max(len(r) for r in rows)
    out = torch.full((len(rows), width), pad, dtype=torch.long)
    for i, row in enumerate(rows):
        out[i, width - len(row):] = row
    return out


def load_model(device):
    with torch.device(device):
        model = MinutesLM(VOCAB)
    return model.to(torch.bfloat16)


def main():
    device = torch.device(sys.argv[1] if len(sys.argv) > 1 else "cuda")
    torch.manual_seed(23)
    model = load_model(device)
    summarise = Summariser(model, seed=3)
    print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.0f}M parameters in {model.embed.weight.dtype}", flush=True)
    done = {}
    for group in batches(calendar(32, seed=5), size=8):
        started = time.time()
        prompts = pad_left([m.tokens() for m in group]).to(device)
        summaries = summarise(prompts, new_tokens=24)
        for meeting, row in zip(group, summaries):
            done[meeting.title] = row.tolist()
        print(f"{group[0].title.rsplit(' ', 1)[0]:11s} x{len(group)}: prompt {prompts.shape[1]:5d} tokens, "
              f"{summaries.shape[1]} written in {time.time() - started:.2f}s", flush=True)
    print(f"{len(done)} meetings summarised")


if __name__ == "__main__":
    main()
