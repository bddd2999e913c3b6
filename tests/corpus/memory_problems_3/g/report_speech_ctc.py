"""CTC training on read and spontaneous speech; cuts of similar duration are batched together."""
import dataclasses
import logging
import random

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils.rnn import pad_sequence

N_MELS = 80
FRAME_SHIFT = 0.01
VOCAB = 500


@dataclasses.dataclass(frozen=True)
class Cut:
    id: int
    duration: float

    @property
    def num_frames(self):
        return int(self.duration / FRAME_SHIFT)


def make_cutset(n, seed=0):
    rng = np.random.default_rng(seed)
    read = rng.normal(7.0, 2.5, int(0.8 * n)).clip(1.0, 16.0)
    spontaneous = rng.lognormal(1.2, 0.9, n - len(read)).clip(0.4, 40.0)
    return [Cut(i, float(d)) for i, d in enumerate(np.concatenate([read, spontaneous]))]


class BucketingSampler:
    """Splits the cuts into buckets by duration and draws batches of up to max_duration seconds."""

    def __init__(self, cuts, max_duration, num_buckets=4, seed=0):
        ordered = sorted(cuts, key=lambda c: c.duration)
        per_bucket = -(-len(ordered) // num_buckets)
        self.buckets = [ordered[i:i + per_bucket] for i in range(0, len(ordered), per_bucket)]
        self.max_duration = max_duration
        self.rng = random.Random(seed)

    def __iter__(self):
        pools = [self.rng.sample(b, len(b)) for b in self.buckets]
        while any(pools):
            pool = self.rng.choice([p for p in pools if p])
            batch, total = [], 0.0
            while pool:
                cut = pool[-1]
                if batch and total + cut.duration > self.max_duration:
                    break
                batch.append(pool.pop())
                total += cut.duration
            yield batch


def collate(cuts):
    cuts = sorted(cuts, key=lambda c: -c.duration)
    features = [torch.from_numpy(np.random.default_rng(c.id).random((c.num_frames, N_MELS), dtype=np.float32))
                for c in cuts]
    inputs = pad_sequence(features, batch_first=True)
    lengths = torch.tensor([c.num_frames for c in cuts])
    targets = [torch.randint(1, VOCAB, (max(1, c.num_frames // 40),)) for c in cuts]
    return inputs, lengths, targets


class Layer(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.heads = heads
        self.n1, self.n2, self.n3 = nn.LayerNorm(d), nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.out = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.conv = nn.Conv1d(d, d, 15, padding=7, groups=d)
        self.ff = nn.Sequential(nn.Linear(d, 4 * d), nn.SiLU(), nn.Linear(4 * d, d))

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, t, d))
        x = x + self.conv(self.n2(x).transpose(1, 2)).transpose(1, 2)
        return x + self.ff(self.n3(x))


class Encoder(nn.Module):
    def __init__(self, d=192, layers=6, heads=4):
        super().__init__()
        self.subsample = nn.Linear(4 * N_MELS, d)
        self.layers = nn.ModuleList(Layer(d, heads) for _ in range(layers))
        self.head = nn.Linear(d, VOCAB)

    def forward(self, x):
        b, t, f = x.shape
        x = x[:, : t // 4 * 4].reshape(b, t // 4, 4 * f)
        x = self.subsample(x)
        for layer in self.layers:
            x = layer(x)
        return F.log_softmax(self.head(x), dim=-1)


def compute_loss(model, batch, device):
    inputs, lengths, targets = collate(batch)
    log_probs = model(inputs.to(device))
    flat = torch.cat(targets).to(device)
    target_lengths = torch.tensor([len(t) for t in targets])
    return F.ctc_loss(log_probs.transpose(0, 1), flat, lengths // 4, target_lengths, zero_infinity=True)


def main():
    logging.basicConfig(level=logging.INFO)
    random.seed(0)
    torch.manual_seed(0)
    device = torch.device("cuda")
    model = Encoder().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    sampler = BucketingSampler(make_cutset(2400), max_duration=200.0)
    for idx, batch in enumerate(sampler):
        loss = compute_loss(model, batch, device)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        if idx % 20 == 0:
            logging.info("batch %d: %d cuts, loss %.3f", idx, len(batch), loss.item())


if __name__ == "__main__":
    main()
