"""Bag-of-words text classifier with DDP. Documents are padded to the longest of their batch."""
import os
import random

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.nn.utils.rnn import pad_sequence

VOCAB = 600
BATCH = 8
STEPS = 100


def load_shard(rank):
    rng = random.Random(rank)
    lengths = [rng.randint(25, 50) for _ in range(STEPS * BATCH)]
    if rank == 2:
        lengths[63 * BATCH + 5] = 1400      # somebody pasted a whole log file
    return [torch.tensor([rng.randrange(1, VOCAB) for _ in range(n)]) for n in lengths]


def collate(docs):
    tokens = pad_sequence(docs, batch_first=True)
    labels = torch.tensor([int(d.sum()) % 4 for d in docs])
    return tokens, labels


def bag_of_words(tokens):
    counts = F.one_hot(tokens, VOCAB).sum(dim=1)
    counts[:, 0] = 0
    return counts.float() / counts.sum(dim=1, keepdim=True).clamp(min=1)


def run(rank):
    docs = load_shard(rank)
    torch.manual_seed(0)
    model = DDP(torch.nn.Sequential(torch.nn.Linear(VOCAB, 256), torch.nn.Tanh(), torch.nn.Linear(256, 4)))
    opt = torch.optim.Adam(model.parameters(), lr=2e-3)
    running = 0.0
    for step in range(STEPS):
        tokens, labels = collate(docs[step * BATCH:(step + 1) * BATCH])
        loss = F.cross_entropy(model(bag_of_words(tokens)), labels)
        loss.backward()
        opt.step()
        opt.zero_grad()
        running = 0.9 * running + 0.1 * loss.item()
        if rank == 0 and step % 20 == 0:
            print(f"{step:4d} {running:.4f}", flush=True)


if __name__ == "__main__":
    dist.init_process_group("gloo", rank=int(os.environ["RANK"]), world_size=int(os.environ["WORLD_SIZE"]))
    run(dist.get_rank())
    dist.destroy_process_group()
