"""Replay of one hour of traffic against the transcription service."""
import random
import sys
import time
from collections import Counter

import torch

from asrserve import Request, Transcriber


def traffic(count, seed):
    rng = random.Random(seed)
    gen = torch.Generator().manual_seed(seed)
    for i in range(count):
        chunks = rng.choice([4, 6, 8])
        language = rng.choice(["en", "en", "de", "fr", "es", "it", "pt", "nl"])
        prompt = [rng.randrange(20, 8000) for _ in range(rng.choice([0, 4, 12, 40]))]
        yield Request(f"r{i:04d}", torch.randn(chunks, 96000, generator=gen), language, prompt)


def replay(service, requests):
    window, start = Counter(), time.time()
    for i, request in enumerate(requests):
        reply = service.handle(request)
        window[reply["status"]] += 1
        if i % 20 == 19:
            used = torch.cuda.memory_allocated() / 2**20
            print(f"{i + 1:4d} requests  ok {window['ok']}  error {window['error']}  {used:.0f} MiB  {time.time() - start:.1f} s", flush=True)
            window.clear()


def main():
    device = torch.device(sys.argv[1] if len(sys.argv) > 1 else "cuda")
    torch.manual_seed(1)
    service = Transcriber(device)
    replay(service, traffic(120, seed=9))
    print(service.summary())


if __name__ == "__main__":
    main()
