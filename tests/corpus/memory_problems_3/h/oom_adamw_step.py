"""Full fine-tuning of a 415M-parameter decoder with AdamW and activation checkpointing."""
import math
import sys

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

VOCAB, DIM, LAYERS, HEADS, CONTEXT = 32000, 1280, 19, 20, 384
MICRO_BATCH = 1
ACCUMULATE = 2
STEPS = 3


class DecoderLayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.qkv = nn.Linear(DIM, 3 * DIM)
        self.proj = nn.Linear(DIM, DIM)
        self.up = nn.Linear(DIM, 4 * DIM)
        self.down = nn.Linear(4 * DIM, DIM)

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.qkv(self.ln1(x)).view(b, n, 3, HEADS, d // HEADS).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(b, n, d))
        return x + self.down(F.gelu(self.up(self.ln2(x))))


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, DIM)
        self.pos = nn.Embedding(CONTEXT, DIM)
        self.layers = nn.ModuleList(DecoderLayer() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(DIM)
        self.head = nn.Linear(DIM, VOCAB, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens):
        x = self.embed(tokens) + self.pos(torch.arange(tokens.shape[1], device=tokens.device))
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False)
        return self.head(self.norm(x))


def parameter_groups(model, weight_decay):
    decay = [p for p in model.parameters() if p.dim() >= 2]
    rest = [p for p in model.parameters() if p.dim() < 2]
    return [{"params": decay, "weight_decay": weight_decay}, {"params": rest, "weight_decay": 0.0}]


def cosine_lr(step, peak=2e-5, warmup=1):
    if step < warmup:
        return peak * (step + 1) / warmup
    return 0.5 * peak * (1 + math.cos(math.pi * (step - warmup) / max(1, STEPS - warmup)))


def micro_batches(device):
    for _ in range(ACCUMULATE):
        block = torch.randint(0, VOCAB, (MICRO_BATCH, CONTEXT + 1), device=device)
        yield block[:, :-1], block[:, 1:]


def train_step(model, optimizer, step, device):
    for group in optimizer.param_groups:
        group["lr"] = cosine_lr(step)
    running = 0.0
    for tokens, targets in micro_batches(device):
        logits = model(tokens)
        loss = F.cross_entropy(logits.view(-1, VOCAB), targets.reshape(-1))
        del logits
        (loss / ACCUMULATE).backward()
        running += loss.item() / ACCUMULATE
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return running, norm.item()


def main():
    device = torch.device(sys.argv[1] if len(sys.argv) > 1 else "cuda")
    torch.manual_seed(0)
    with device:
        model = Decoder()
    total = sum(p.numel() for p in model.parameters())
    print(f"{total / 1e6:.0f}M parameters")
    optimizer = torch.optim.AdamW(parameter_groups(model, 0.1), lr=2e-5, betas=(0.9, 0.95))
    model.train()
    for step in range(STEPS):
        loss, norm = train_step(model, optimizer, step, device)
        print(f"step {step}: loss {loss:.4f} grad norm {norm:.3f}", flush=True)


if __name__ == "__main__":
    main()
