"""Serve a small bf16 language model to the support desk and replay one morning of requests."""
import sys
from collections import Counter
from dataclasses import dataclass

import numpy as np
import torch

from chatserve.engine import Engine
from chatserve.model import CausalLM


@dataclass
class Request:
    user: str
    kind: str
    prompt: list


KINDS = {
    "question": (60, 300),
    "ticket": (400, 1200),
    "mail_thread": (1200, 2600),
    "call_transcript": (8200, 9400),
}


def morning_traffic(count, seed, vocab=151_936):
    rng = np.random.default_rng(seed)
    names = list(KINDS)
    requests = []
    for i in range(count):
        kind = names[rng.choice(len(names), p=[0.5, 0.33, 0.12, 0.05])]
        low, high = KINDS[kind]
        prompt = rng.integers(0, vocab, int(rng.integers(low, high))).tolist()
        requests.append(Request(f"agent{rng.integers(12):02d}", kind, prompt))
    return requests


def load_model(device):
    with torch.device("meta"):
        model = CausalLM()
    model = model.to(torch.bfloat16).to_empty(device=device)
    model.lm_head.weight = model.embed.weight
    for p in model.parameters():
        p.data.normal_(0, 0.02)
        p.requires_grad_(False)
    return model.eval()


class UsageLog:
    def __init__(self):
        self.tokens = Counter()
        self.seconds = Counter()

    def add(self, request, usage):
        self.tokens[request.user] += usage["prompt_tokens"] + usage["completion_tokens"]
        self.seconds[request.kind] += usage["seconds"]

    def report(self):
        for user, tokens in self.tokens.most_common(5):
            print(f"  {user}: {tokens} tokens")


def main():
    device = torch.device(sys.argv[1] if len(sys.argv) > 1 else "cuda")
    torch.manual_seed(77)
    engine = Engine(load_model(device), device)
    usage = UsageLog()
    for number, request in enumerate(morning_traffic(24, seed=5)):
        print(f"{number:3d} {request.user} {request.kind:15s} {len(request.prompt):6d} tokens", flush=True)
        usage.add(request, engine.complete(request.prompt))
    print("morning finished")
    usage.report()


if __name__ == "__main__":
    main()
