"""DDP over uneven shards with the join() context. Each rank decodes its shard once, in the
first epoch, and keeps it decoded for the later ones."""
import os
from collections import deque

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

SHARD_SIZES = {0: 24, 1: 33, 2: 17}      # batches
EPOCHS = 4


class Shard:
    def __init__(self, rank):
        self.rank = rank
        self.n = SHARD_SIZES[rank]
        self.batch = 32 if rank != 1 else 40
        self.decoded = {}

    def decode(self, i):
        g = torch.Generator().manual_seed(self.rank * 1000 + i)
        raw = torch.randint(0, 256, (self.batch, 1, 24, 24), generator=g, dtype=torch.uint8)
        return raw.float() / 255, raw[:, 0, 0, 0].long() % 8

    def __iter__(self):
        for i in torch.randperm(self.n).tolist():
            if i not in self.decoded:
                self.decoded[i] = self.decode(i)
            yield self.decoded[i]


class Conv(nn.Module):
    def __init__(self):
        super().__init__()
        self.c1 = nn.Conv2d(1, 8, 3, stride=2)
        self.c2 = nn.Conv2d(8, 16, 3, stride=2)
        self.out = nn.Linear(16 * 25, 8)

    def forward(self, x):
        x = F.relu(self.c1(x))
        x = F.relu(self.c2(x))
        return self.out(x.flatten(1))


def main():
    dist.init_process_group("gloo")
    rank = int(os.environ["RANK"])
    torch.manual_seed(0)
    model = DDP(Conv())
    opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    shard = Shard(rank)
    last_outputs = deque(maxlen=10)
    for epoch in range(EPOCHS):
        seen = 0
        with model.join():
            for x, y in shard:
                out = model(x)
                loss = F.cross_entropy(out, y)
                opt.zero_grad()
                loss.backward()
                opt.step()
                last_outputs.append(out.detach())
                seen += len(y)
        spread = torch.cat(list(last_outputs)).std().item()
        print(f"rank {rank} epoch {epoch} seen {seen} loss {loss.item():.3f} spread {spread:.3f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
