"""Predict chromatin tracks from 32 kb of sequence."""
import sys
import time

import numpy as np
import torch

from genomelm.network import GenomeTrunk

LENGTH = 32768
BINS = LENGTH // 128


class Regions:
    def __init__(self, count, seed):
        rng = np.random.default_rng(seed)
        self.sequence = rng.integers(0, 4, (count, LENGTH), dtype=np.uint8)
        self.tracks = rng.poisson(2.0, (count, 16, BINS)).astype(np.float32)

    def __len__(self):
        return len(self.sequence)

    def load(self, index, device):
        seq = torch.from_numpy(self.sequence[index]).to(device)
        letters = torch.arange(4, device=device, dtype=torch.uint8)
        onehot = (seq.unsqueeze(1) == letters.view(1, 4, 1)).float()
        return onehot, torch.from_numpy(self.tracks[index]).to(device)


def reverse_complement(onehot, tracks):
    return onehot.flip((1, 2)), tracks.flip(2)


def poisson_loss(pred, target):
    return (pred - target * torch.log(pred + 1e-6)).mean()


def train(model, data, device, epochs, batch_size, lr=3e-4):
    opt = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=1e-3)
    rng = np.random.default_rng(17)
    for epoch in range(epochs):
        model.train()
        start, losses = time.time(), []
        order = rng.permutation(len(data))
        for lo in range(0, len(order), batch_size):
            onehot, tracks = data.load(order[lo : lo + batch_size], device)
            if rng.random() < 0.5:
                onehot, tracks = reverse_complement(onehot, tracks)
            loss = poisson_loss(model(onehot), tracks)
            opt.zero_grad()
            loss.backward()
            opt.step()
            losses.append(loss.detach())
        mean = torch.stack(losses).mean().item()
        peak = torch.cuda.max_memory_allocated(device) / 2**20
        print(f"epoch {epoch}: loss {mean:.4f}  {time.time() - start:.1f} s  peak {peak:.0f} MiB", flush=True)


@torch.no_grad()
def correlation(model, data, device):
    model.eval()
    onehot, tracks = data.load(np.arange(2), device)
    pred = model(onehot)
    a = pred - pred.mean(-1, keepdim=True)
    b = tracks - tracks.mean(-1, keepdim=True)
    return ((a * b).sum(-1) / (a.norm(dim=-1) * b.norm(dim=-1) + 1e-6)).mean().item()


def main():
    device = torch.device(sys.argv[1] if len(sys.argv) > 1 else "cuda")
    torch.manual_seed(8)
    model = GenomeTrunk().to(device)
    print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.2f} M parameters")
    train(model, Regions(16, seed=1), device, epochs=3, batch_size=2)
    print(f"validation correlation {correlation(model, Regions(4, seed=2), device):.3f}")


if __name__ == "__main__":
    main()
