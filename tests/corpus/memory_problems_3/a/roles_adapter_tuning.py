# Low-rank adapters on a half-precision language model, trained on instructions.
import math

import torch
import torch.nn.functional as F
from torch import nn


class Adapted(nn.Module):
    """A frozen linear layer plus a trained product of two thin matrices."""

    def __init__(self, inputs, outputs, rank=16, alpha=32):
        super().__init__()
        self.base = nn.Linear(inputs, outputs, bias=False, device="cuda", dtype=torch.bfloat16)
        self.base.weight.requires_grad_(False)
        self.down = nn.Parameter(torch.randn(rank, inputs, device="cuda") / math.sqrt(inputs))
        self.up = nn.Parameter(torch.zeros(outputs, rank, device="cuda"))
        self.scale = alpha / rank

    def forward(self, x):
        low = F.linear(F.linear(x, self.down.to(x.dtype)), self.up.to(x.dtype))
        return self.base(x) + self.scale * low


class Norm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.register_buffer("gain", torch.ones(width, device="cuda", dtype=torch.bfloat16))

    def forward(self, x):
        return x * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-5).to(x.dtype) * self.gain


class DecoderLayer(nn.Module):
    def __init__(self, width, heads, hidden):
        super().__init__()
        self.heads = heads
        self.first, self.second = Norm(width), Norm(width)
        self.q, self.k, self.v, self.o = (Adapted(width, width) for _ in range(4))
        self.gate, self.raise_ = Adapted(width, hidden), Adapted(width, hidden)
        self.lower = Adapted(hidden, width)

    def attend(self, x):
        split = lambda t: t.unflatten(-1, (self.heads, -1)).transpose(1, 2)
        x = F.scaled_dot_product_attention(split(self.q(x)), split(self.k(x)), split(self.v(x)), is_causal=True)
        return self.o(x.transpose(1, 2).flatten(2))

    def forward(self, x):
        x = x + self.attend(self.first(x))
        y = self.second(x)
        return x + self.lower(F.silu(self.gate(y)) * self.raise_(y))


class LanguageModel(nn.Module):
    def __init__(self, vocabulary=32000, width=1536, heads=12, hidden=4096, layers=10):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width, device="cuda", dtype=torch.bfloat16).requires_grad_(False)
        self.layers = nn.ModuleList(DecoderLayer(width, heads, hidden) for _ in range(layers))
        self.norm = Norm(width)

    def forward(self, tokens):
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return F.linear(self.norm(x), self.embed.weight)


model = LanguageModel()
adapters = [parameter for parameter in model.parameters() if parameter.requires_grad]
optimizer = torch.optim.AdamW(adapters, lr=2e-4, weight_decay=0.0)
print(f"{sum(p.numel() for p in adapters) / 1e6:.1f} of {sum(p.numel() for p in model.parameters()) / 1e6:.0f} M trained")

for step in range(50):
    tokens = torch.randint(0, 32000, (4, 257)).cuda()
    optimizer.zero_grad(set_to_none=True)
    logits = model(tokens[:, :-1])
    loss = F.cross_entropy(logits.float().flatten(0, 1), tokens[:, 1:].flatten())
    loss.backward()
    optimizer.step()
    if step % 10 == 0:
        print(f"step {step}: loss {loss.item():.3f}, {torch.cuda.max_memory_allocated() >> 20} MiB at most")
