"""A dispatcher (rank 0) hands requests to inference workers (ranks 1..N-1).

Chat requests always go to the same worker, which keeps their hidden state in
case the user asks a follow-up question. All others are plain classification.
"""
import os
import random
from collections import OrderedDict

import torch
import torch.distributed as dist

CLASSIFY, CHAT, STOP = 0, 1, 2
SEQ, DIM = 64, 256
ROUNDS = 100
CHAT_WORKER = 2


class Worker:
    def __init__(self, rank):
        self.rank = rank
        g = torch.Generator().manual_seed(7)
        self.w_in = torch.randn(DIM, 3 * DIM, generator=g) / DIM ** 0.5
        self.w_state = torch.randn(3 * DIM, 3 * DIM, generator=g) / (3 * DIM) ** 0.5
        self.w_out = torch.randn(3 * DIM, DIM, generator=g) / (3 * DIM) ** 0.5
        self.sessions = {}
        self.recent = OrderedDict()

    def classify(self, request_id, x):
        h = torch.relu(x @ self.w_in)
        answer = (h @ self.w_out).mean(dim=0)
        self.recent[request_id] = answer
        if len(self.recent) > 16:
            self.recent.popitem(last=False)
        return answer

    def chat(self, request_id, x):
        h = torch.relu(x @ self.w_in)
        previous = self.sessions.get(request_id)
        if previous is not None:
            h = h + previous
        state = torch.tanh(h @ self.w_state)
        self.sessions[request_id] = state
        return (state @ self.w_out).mean(dim=0)

    @torch.inference_mode()
    def serve(self):
        header = torch.zeros(2, dtype=torch.int64)
        served = 0
        while True:
            dist.recv(header, src=0)
            kind, request_id = header.tolist()
            if kind == STOP:
                return served
            x = torch.empty(SEQ, DIM)
            dist.recv(x, src=0)
            handler = self.chat if kind == CHAT else self.classify
            dist.send(handler(request_id, x), dst=0)
            served += 1


def dispatch(world):
    rng = random.Random(3)
    answer = torch.empty(DIM)
    total = 0.0
    for rnd in range(ROUNDS):
        for w in range(1, world):
            kind = CHAT if w == CHAT_WORKER else CLASSIFY
            request_id = rng.randrange(10 ** 9)
            dist.send(torch.tensor([kind, request_id]), dst=w)
            dist.send(torch.randn(SEQ, DIM), dst=w)
        for w in range(1, world):
            dist.recv(answer, src=w)
            total += answer.norm().item()
        if rnd % 25 == 0:
            print(f"round {rnd} mean norm {total / ((rnd + 1) * (world - 1)):.3f}", flush=True)
    for w in range(1, world):
        dist.send(torch.tensor([STOP, 0]), dst=w)


if __name__ == "__main__":
    dist.init_process_group("gloo")
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if rank == 0:
        dispatch(world)
    else:
        n = Worker(rank).serve()
        print(f"worker {rank} served {n}")
    dist.barrier()
    dist.destroy_process_group()
