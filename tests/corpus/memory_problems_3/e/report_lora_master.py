"""Fine-tune a bf16 decoder with low-rank adapters and an optimizer that keeps fp32 master weights."""
import argparse
import logging
import math

import torch
import torch.nn.functional as F
from torch import nn

logger = logging.getLogger(__name__)


class HalfPrecisionOptimizer:
    """Wraps a torch optimizer: bf16 parameters for the model, fp32 masters for the update."""

    def __init__(self, optimizer, clip_grad=1.0):
        self.optimizer = optimizer
        self.clip_grad = clip_grad
        self.half_groups, self.master_groups = [], []
        for group in optimizer.param_groups:
            self.half_groups.append(list(group["params"]))
            masters = [p.clone().float().detach() for p in group["params"]]
            for master, p in zip(masters, group["params"]):
                master.requires_grad_(p.requires_grad)
            self.master_groups.append(masters)
            group["params"] = masters
        logger.info("master weights: %d tensors", sum(len(g) for g in self.master_groups))

    def zero_grad(self):
        for group in self.half_groups:
            for p in group:
                p.grad = None

    def step(self):
        for halves, masters in zip(self.half_groups, self.master_groups):
            for p, master in zip(halves, masters):
                if p.grad is not None:
                    master.grad = p.grad.float()
            nn.utils.clip_grad_norm_([m for m in masters if m.grad is not None], self.clip_grad)
        self.optimizer.step()
        with torch.no_grad():
            for halves, masters in zip(self.half_groups, self.master_groups):
                for p, master in zip(halves, masters):
                    if p.requires_grad:
                        p.copy_(master)
                        master.grad = None


class LoraLinear(nn.Module):
    def __init__(self, din, dout, rank):
        super().__init__()
        self.base = nn.Linear(din, dout, bias=False)
        self.lora_a = nn.Parameter(torch.randn(rank, din) / math.sqrt(din))
        self.lora_b = nn.Parameter(torch.zeros(dout, rank))
        self.base.weight.requires_grad_(False)

    def forward(self, x):
        return self.base(x) + F.linear(F.linear(x, self.lora_a), self.lora_b)


class Layer(nn.Module):
    def __init__(self, dim, heads, ffn, rank):
        super().__init__()
        self.heads = heads
        self.ln1, self.ln2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.q, self.v = LoraLinear(dim, dim, rank), LoraLinear(dim, dim, rank)
        self.k, self.o = nn.Linear(dim, dim, bias=False), nn.Linear(dim, dim, bias=False)
        self.ff1, self.ff2 = nn.Linear(dim, ffn), nn.Linear(ffn, dim)

    def split(self, x):
        return x.view(x.shape[0], x.shape[1], self.heads, -1).transpose(1, 2)

    def forward(self, x):
        h = self.ln1(x)
        a = F.scaled_dot_product_attention(self.split(self.q(h)), self.split(self.k(h)), self.split(self.v(h)),
                                           is_causal=True)
        x = x + self.o(a.transpose(1, 2).reshape(x.shape))
        return x + self.ff2(F.gelu(self.ff1(self.ln2(x))))


class Decoder(nn.Module):
    def __init__(self, vocab, dim, heads, ffn, depth, rank):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.layers = nn.ModuleList(Layer(dim, heads, ffn, rank) for _ in range(depth))
        self.norm = nn.LayerNorm(dim)
        for name, p in self.named_parameters():
            p.requires_grad_("lora_" in name)

    def forward(self, ids):
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        return F.linear(self.norm(x), self.embed.weight)


def batches(n, size, length, vocab):
    g = torch.Generator().manual_seed(3)
    for _ in range(n):
        yield torch.randint(0, vocab, (size, length + 1), generator=g)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=64)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--lr", type=float, default=2e-4)
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO)

    with torch.device("cuda"):
        torch.set_default_dtype(torch.bfloat16)
        model = Decoder(32000, 2048, 16, 8192, 12, args.rank)
        torch.set_default_dtype(torch.float32)
    trainable = sum(p.numel() for p in model.parameters() if p.requires_grad)
    logger.info("%.1f M of %.1f M parameters train", trainable / 1e6, sum(p.numel() for p in model.parameters()) / 1e6)
    optimizer = HalfPrecisionOptimizer(torch.optim.AdamW(model.parameters(), lr=args.lr))
    for step, ids in enumerate(batches(args.steps, 2, 256, 32000)):
        ids = ids.cuda()
        logits = model(ids[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1).float(), ids[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 16 == 0:
            logger.info("step %d loss %.3f", step, loss.item())


if __name__ == "__main__":
    main()
