import itertools

import torch
import torch.nn.functional as F
from torch import nn

# Sequence length warm-up for a byte-level model of source code (start short, double the length, end at 1024).
STAGES = [(64, 40), (128, 40), (256, 40), (512, 40), (1024, 60)]
BATCH = 8
DIM = 384


class CausalConvMixer(nn.Module):
    def __init__(self, dim, kernel=32):
        super().__init__()
        self.kernel = kernel
        self.norm = nn.LayerNorm(dim)
        self.gate = nn.Linear(dim, 2 * dim)
        self.conv = nn.Conv1d(dim, dim, kernel, groups=dim)
        self.out = nn.Linear(dim, dim)

    def forward(self, x):
        a, g = self.gate(self.norm(x)).chunk(2, dim=-1)
        h = self.conv(F.pad(a.transpose(1, 2), (self.kernel - 1, 0))).transpose(1, 2)
        return x + self.out(h * torch.sigmoid(g))


class ByteModel(nn.Module):
    def __init__(self, dim=DIM, depth=8):
        super().__init__()
        self.embed = nn.Embedding(256, dim)
        self.mixers = nn.ModuleList(CausalConvMixer(dim) for _ in range(depth))
        self.mlps = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))
            for _ in range(depth))
        self.head = nn.Linear(dim, 256)

    def forward(self, x):
        x = self.embed(x)
        for mixer, mlp in zip(self.mixers, self.mlps):
            x = mixer(x)
            x = x + mlp(x)
        return self.head(x)


def source_bytes(path=__file__):
    with open(path, "rb") as f:
        return torch.frombuffer(bytearray(f.read() * 40), dtype=torch.uint8).long()


def windows(data, length, batch, gen):
    while True:
        starts = torch.randint(0, len(data) - length - 1, (batch,), generator=gen)
        chunk = torch.stack([data[s:s + length + 1] for s in starts.tolist()])
        yield chunk[:, :-1], chunk[:, 1:]


def main():
    gen = torch.Generator().manual_seed(17)
    data = source_bytes()
    model = ByteModel().to("cuda")
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)
    total = sum(s for _, s in STAGES)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, max_lr=1e-3, total_steps=total)
    step = 0
    for length, steps in STAGES:
        losses = []
        for x, y in itertools.islice(windows(data, length, BATCH, gen), steps):
            x, y = x.to("cuda", non_blocking=True), y.to("cuda", non_blocking=True)
            loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
            opt.zero_grad(set_to_none=True)
            loss.backward()
            opt.step()
            sched.step()
            losses.append(loss.item())
            step += 1
        print(f"length {length}: {step}/{total} steps, bits per byte {sum(losses) / len(losses) / 0.6931:.3f}")


if __name__ == "__main__":
    main()
