"""A server that collects requests into batches; clients may give up before their answer is ready.

Answers nobody waits for any more stay in the table of finished requests.
"""

import random
import sys
from collections import deque

import torch
from torch import nn

import pytorch_alloctrace as alloctrace


class Server:
    def __init__(self, device, batch_size=8):
        self.model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 1024)).to(device).eval()
        self.device = device
        self.batch_size = batch_size
        self.waiting = deque()
        self.finished = {}

    def submit(self, request_id, features):
        self.waiting.append((request_id, features))

    @torch.inference_mode()
    def run_batch(self):
        if not self.waiting:
            return
        taken = [self.waiting.popleft() for _ in range(min(self.batch_size, len(self.waiting)))]
        outputs = self.model(torch.stack([features for _, features in taken]).to(self.device))
        for (request_id, _), output in zip(taken, outputs, strict=True):
            self.finished[request_id] = output.clone()  # LEAK

    def collect(self, request_id):
        return self.finished.pop(request_id, None)


def main():
    torch.manual_seed(1)
    torch.set_num_threads(1)
    rng = random.Random(1)
    server = Server(sys.argv[1])
    next_id, answered = 0, 0
    for _tick in range(350):
        clients = []
        for _ in range(rng.randint(2, 8)):
            server.submit(next_id, torch.randn(64))
            clients.append(next_id)
            next_id += 1
        server.run_batch()  # LEAK
        for request_id in clients:
            if rng.random() < 0.08:
                continue  # this client has gone
            if server.collect(request_id) is not None:
                answered += 1
        alloctrace.step()
    print(f"{answered} of {next_id} requests answered")


if __name__ == "__main__":
    main()
