"""Trains a small language model on bytes with a batch size that is ramped up, then constant."""
import torch
import torch.nn.functional as F
from torch import nn

RAMP = [(0, 8), (25, 16), (50, 32), (75, 64), (100, 128)]
STEPS = 200
LENGTH = 256


class GatedConvolution(nn.Module):
    def __init__(self, width, kernel=5):
        super().__init__()
        self.kernel = kernel
        self.convolution = nn.Conv1d(width, 2 * width, kernel)
        self.norm = nn.GroupNorm(8, width)

    def forward(self, x):
        y = F.pad(self.norm(x), (self.kernel - 1, 0))
        return x + F.glu(self.convolution(y), dim=1)


class ByteModel(nn.Module):
    def __init__(self, width=256, layers=8):
        super().__init__()
        self.embed = nn.Embedding(256, width)
        self.layers = nn.Sequential(*[GatedConvolution(width) for _ in range(layers)])
        self.head = nn.Conv1d(width, 256, 1)

    def forward(self, data):
        return self.head(self.layers(self.embed(data).transpose(1, 2)))


def batch_size_at(step):
    return [size for start, size in RAMP if start <= step][-1]


def perplexity(losses):
    recent = losses[-25:]
    return torch.tensor(recent).mean().exp().item()


text = torch.randint(0, 256, (2_000_000,), dtype=torch.uint8)
model = ByteModel().cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=6e-4, betas=(0.9, 0.95))
losses = []
for step in range(STEPS):
    size = batch_size_at(step)
    starts = torch.randint(0, len(text) - LENGTH - 1, (size,))
    rows = torch.stack([text[start:start + LENGTH + 1] for start in starts.tolist()]).cuda().long()
    for group in optimizer.param_groups:
        group["lr"] = 6e-4 * (size / 128) ** 0.5
    loss = F.cross_entropy(model(rows[:, :-1]), rows[:, 1:])
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
    if step % 25 == 24:
        print(f"step {step + 1}: batches of {size}, perplexity {perplexity(losses):.2f}, "
              f"peak {torch.cuda.max_memory_allocated() >> 20} MiB")
