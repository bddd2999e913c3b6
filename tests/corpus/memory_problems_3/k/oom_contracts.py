"""Adapter tuning of an in-house decoder on contract clauses."""
import sys
import time

import numpy as np
import torch
import torch.nn.functional as F

from clauses.adapters import attach
from clauses.decoder import Decoder

TARGETS = ("q", "k", "v", "o", "gate", "lift", "drop")
SEQ, BATCH, ACCUM, UPDATES = 448, 1, 4, 6


class ClauseCorpus:
    """Packs clauses of varying length into fixed windows."""

    def __init__(self, vocab, seed):
        self.rng = np.random.default_rng(seed)
        self.vocab = vocab

    def clause(self):
        n = int(np.clip(self.rng.lognormal(4.6, 0.6), 20, 400))
        return self.rng.integers(3, self.vocab, n).tolist() + [2]

    def windows(self):
        buf = []
        while True:
            while len(buf) < SEQ + 1:
                buf += self.clause()
            yield torch.tensor(buf[: SEQ + 1])
            buf = buf[SEQ + 1:]


def collate(it, n):
    rows = torch.stack([next(it) for _ in range(n)])
    return rows[:, :-1], rows[:, 1:]


def build(device, rank=16):
    torch.set_default_dtype(torch.bfloat16)
    with torch.device(device):
        model = Decoder()
        n = attach(model, TARGETS, rank)
    torch.set_default_dtype(torch.float32)
    trainable = [p for p in model.parameters() if p.requires_grad]
    total = sum(p.numel() for p in model.parameters())
    print(f"{n} adapters, {sum(p.numel() for p in trainable) / 1e6:.1f}M of {total / 1e6:.0f}M parameters trainable", flush=True)
    return model, trainable


def token_loss(logits, target):
    return F.cross_entropy(logits.flatten(0, 1), target.flatten())


def tune(model, trainable, corpus, device):
    opt = torch.optim.AdamW(trainable, lr=2e-4, weight_decay=0.0)
    sched = torch.optim.lr_scheduler.LinearLR(opt, 0.1, 1.0, total_iters=UPDATES)
    it = corpus.windows()
    model.train()
    t0 = time.time()
    for u in range(UPDATES):
        seen = 0.0
        for _ in range(ACCUM):
            ids, target = (t.to(device) for t in collate(it, BATCH))
            loss = token_loss(model(ids), target) / ACCUM
            loss.backward()
            seen += loss.item()
        torch.nn.utils.clip_grad_norm_(trainable, 1.0)
        opt.step()
        opt.zero_grad(set_to_none=True)
        sched.step()
        print(f"update {u + 1}/{UPDATES} loss {seen:.4f} {time.time() - t0:.1f}s", flush=True)


def main():
    device = sys.argv[1] if len(sys.argv) > 1 else "cuda"
    torch.manual_seed(77)
    model, trainable = build(device)
    tune(model, trainable, ClauseCorpus(24000, seed=77), device)
    state = {k: v.cpu() for k, v in model.named_parameters() if v.requires_grad}
    print("adapter tensors:", len(state))


if __name__ == "__main__":
    main()
