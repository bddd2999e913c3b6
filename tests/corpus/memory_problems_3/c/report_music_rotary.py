"""Train a small transformer on piano performances of all lengths, grouped by length."""
import random

import torch
from torch.nn import functional as F

from report_music_rotary_lib.transformer import MusicTransformer


def performances(count, seed=5):
    """(length in events) of each piece; transposed and time-stretched copies are cut differently."""
    lengths = random.Random(seed)
    return [int(min(2048, max(64, lengths.lognormvariate(6.3, 0.6)))) for _ in range(count)]


def batches(lengths, tokens_per_batch, seed):
    order = sorted(lengths)
    groups, group = [], []
    for length in order:
        if group and (len(group) + 1) * length > tokens_per_batch:
            groups.append(group)
            group = []
        group.append(length)
    groups.append(group)
    random.Random(seed).shuffle(groups)
    for group in groups:
        yield torch.zeros(len(group), max(group), dtype=torch.long)


def step(model, optimizer, events):
    logits = model(events[:, :-1])
    loss = F.cross_entropy(logits.flatten(0, 1), events[:, 1:].flatten())
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return loss.item()


def train(epochs=3):
    torch.manual_seed(0)
    model = MusicTransformer().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-4)
    lengths = performances(900)
    seen = 0
    for epoch in range(epochs):
        stretched = [min(2048, int(n * random.Random(epoch).uniform(0.9, 1.1))) for n in lengths]
        for events in batches(stretched, tokens_per_batch=4096, seed=epoch):
            loss = step(model, optimizer, events.cuda())
            seen += 1
            if seen % 40 == 0:
                print(f"epoch {epoch} batch {seen}: {tuple(events.shape)} loss {loss:.3f} "
                      f"{torch.cuda.memory_allocated() / 2**20:.0f} MiB", flush=True)
    print("max allocated", torch.cuda.max_memory_allocated() // 2**20, "MiB")


if __name__ == "__main__":
    train()
