"""Secondary structure tagging on a UniProt-like mix of chains."""
import sys
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F

from protlm import ResidueBatcher, StructureTagger, collate


@dataclass
class Chain:
    name: str
    residues: np.ndarray
    states: np.ndarray


def load_chains(count, rng):
    """Chain lengths follow the proteome: most are a few hundred residues, a handful are giants."""
    lengths = np.clip(rng.lognormal(mean=5.4, sigma=0.45, size=count), 40, 900).astype(int)
    for slot, n in zip((117, 630), (5890, 5207)):
        lengths[slot] = n
    chains = []
    for i, n in enumerate(lengths):
        residues = rng.integers(1, 26, n)
        states = rng.integers(0, 8, n)
        chains.append(Chain(f"P{i:05d}", residues, states))
    return chains


class Trainer:
    def __init__(self, model, device, lr=3e-4):
        self.model = model.to(device)
        self.device = device
        self.optim = torch.optim.AdamW(self.model.parameters(), lr=lr, weight_decay=0.01)
        self.seen = 0

    def step(self, x, y):
        x = x.to(self.device, non_blocking=True)
        y = y.to(self.device, non_blocking=True)
        logits = self.model(x)
        loss = F.cross_entropy(logits.flatten(0, 1), y.flatten(), ignore_index=-100)
        self.optim.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optim.step()
        return loss.detach()

    def fit(self, chains, batcher, epochs=1):
        for epoch in range(epochs):
            running = torch.zeros((), device=self.device)
            for i, group in enumerate(batcher):
                x, y = collate([chains[j] for j in group])
                running += self.step(x, y)
                self.seen += sum(len(chains[j].residues) for j in group)
                if i % 5 == 0:
                    print(f"epoch {epoch} batch {i:4d} chains {len(group):3d} residues seen {self.seen}")
            print(f"epoch {epoch} mean loss {running.item() / (i + 1):.4f}")


def main(device):
    torch.manual_seed(11)
    rng = np.random.default_rng(11)
    chains = load_chains(900, rng)
    lengths = [len(c.residues) for c in chains]
    print(f"{len(chains)} chains, median length {int(np.median(lengths))}, residues {sum(lengths)}")
    batcher = ResidueBatcher(lengths, budget=12288, seed=18)
    trainer = Trainer(StructureTagger(), device)
    trainer.fit(chains, batcher, epochs=1)
    print("done")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "cuda")
