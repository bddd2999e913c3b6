"""Bottleneck adapters in a frozen text classifier."""
import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F

from membook import PeakWatch, gradients, optimizer_tensors, report, storage_bytes


class Adapter(nn.Module):
    def __init__(self, dim, bottleneck):
        super().__init__()
        self.down, self.up = nn.Linear(dim, bottleneck), nn.Linear(bottleneck, dim)
        nn.init.zeros_(self.up.weight)

    def forward(self, x):
        return x + self.up(F.gelu(self.down(x)))


class Layer(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.ff = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))
        self.adapter = Adapter(dim, 32)

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v)
        x = x + self.out(y.transpose(1, 2).reshape(b, n, d))
        return self.adapter(x + self.ff(self.norm2(x)))


class Classifier(nn.Module):
    def __init__(self, vocab=10_000, dim=384, layers=6, classes=20, max_len=128):
        super().__init__()
        self.tokens = nn.Embedding(vocab, dim)
        self.register_buffer("positions", torch.randn(max_len, dim))
        self.layers = nn.ModuleList(Layer(dim, 6) for _ in range(layers))
        self.head = nn.Linear(dim, classes)

    def forward(self, ids):
        x = self.tokens(ids) + self.positions[:ids.shape[1]]
        for layer in self.layers:
            x = layer(x)
        return self.head(x.mean(1))


def freeze_base(model):
    for name, p in model.named_parameters():
        p.requires_grad_("adapter" in name or name.startswith("head"))
    return [p for p in model.parameters() if p.requires_grad]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--batch", type=int, default=16)
    ap.add_argument("--steps", type=int, default=20)
    args = ap.parse_args()
    torch.manual_seed(0)
    model = Classifier().cuda()
    optimizer = torch.optim.AdamW(freeze_base(model), lr=1e-3)
    watch = PeakWatch()
    for step in range(1, args.steps + 1):
        ids = torch.randint(0, 10_000, (args.batch, 128)).cuda()
        labels = torch.randint(0, 20, (args.batch,)).cuda()
        optimizer.zero_grad(set_to_none=True)
        loss = F.cross_entropy(model(ids), labels)
        watch.check(step, "forward")
        loss.backward()
        watch.check(step, "backward")
        if step == 15:
            sizes = {
                "parameters": storage_bytes(model.parameters()),
                "buffers": storage_bytes(model.buffers()),
                "gradients": storage_bytes(gradients(model)),
                "optimizer state": storage_bytes(optimizer_tensors(optimizer)),
                "activations": 0,
                "inputs": storage_bytes([ids, labels]),
            }
        optimizer.step()
        watch.check(step, "optimizer step")
    report(watch, sizes)


if __name__ == "__main__":
    main()
