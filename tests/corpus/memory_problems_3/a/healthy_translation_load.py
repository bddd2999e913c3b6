"""Translation server under rising load: requests are collected for a moment and answered as one batch."""
import queue
import threading
import time

import torch
from torch import nn

LOAD = [4, 8, 16, 32, 48, 64, 64, 64, 32, 16]  # clients in each phase
MAX_BATCH = 64


class Request:
    __slots__ = ("tokens", "answer", "ready")

    def __init__(self, tokens):
        self.tokens = tokens
        self.answer = None
        self.ready = threading.Event()


class Translator(nn.Module):
    def __init__(self, vocabulary=16000, width=512):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.encode = nn.Sequential(*[nn.Sequential(nn.Linear(width, 4 * width), nn.ReLU(), nn.Linear(4 * width, width))
                                      for _ in range(6)])
        self.decode = nn.Linear(width, vocabulary)

    def forward(self, tokens):
        x = self.embed(tokens)
        x = x + x.cumsum(dim=1) / tokens.shape[1]
        return self.decode(self.encode(x))


class Batcher(threading.Thread):
    def __init__(self, model, device, wait=0.004):
        super().__init__(daemon=True)
        self.model, self.device, self.wait = model, device, wait
        self.inbox = queue.Queue(maxsize=4 * MAX_BATCH)
        self.sizes = []
        self.stopping = False

    def take(self):
        batch = [self.inbox.get()]
        deadline = time.monotonic() + self.wait
        while len(batch) < MAX_BATCH and (left := deadline - time.monotonic()) > 0:
            try:
                batch.append(self.inbox.get(timeout=left))
            except queue.Empty:
                break
        return [request for request in batch if request is not None]

    @torch.inference_mode()
    def run(self):
        while not self.stopping:
            batch = self.take()
            if not batch:
                continue
            tokens = torch.stack([request.tokens for request in batch]).to(self.device)
            answers = self.model(tokens).argmax(dim=-1).cpu()
            for request, answer in zip(batch, answers):
                request.answer = answer
                request.ready.set()
            self.sizes.append(len(batch))

    def stop(self):
        self.stopping = True
        self.inbox.put(None)
        self.join()


def client(batcher, requests):
    for _ in range(requests):
        request = Request(torch.randint(0, 16000, (48,)))
        batcher.inbox.put(request)
        request.ready.wait()
        request.answer.tolist()


def main():
    device = torch.device("cuda")
    batcher = Batcher(Translator().to(device).eval(), device)
    batcher.start()
    for clients in LOAD:
        before = len(batcher.sizes)
        threads = [threading.Thread(target=client, args=(batcher, 12)) for _ in range(clients)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        print(f"{clients} clients: largest batch {max(batcher.sizes[before:])}, "
              f"peak {torch.cuda.max_memory_allocated() >> 20} MiB")
        torch.cuda.reset_peak_memory_stats()
    batcher.stop()


if __name__ == "__main__":
    main()
