"""Single device LoRA finetuning recipe for a decoder-only model."""
import logging
import sys
from functools import partial

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader

logging.basicConfig(stream=sys.stdout, level=logging.INFO, format="%(levelname)s %(message)s")
log = logging.getLogger(__name__)

CFG = dict(vocab=32000, dim=256, layers=4, heads=8, rank=8, seq_len=512, batch_size=4,
           max_steps=60, grad_accum=2, lr=3e-4, log_every=20)


class LoRALinear(nn.Module):
    def __init__(self, din, dout, rank):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(dout, din) * 0.02, requires_grad=False)
        self.lora_a = nn.Linear(din, rank, bias=False)
        self.lora_b = nn.Linear(rank, dout, bias=False)
        nn.init.zeros_(self.lora_b.weight)

    def forward(self, x):
        return F.linear(x, self.weight) + 2.0 * self.lora_b(self.lora_a(x))


class Layer(nn.Module):
    def __init__(self, dim, heads, rank):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv = LoRALinear(dim, 3 * dim, rank)
        self.out = LoRALinear(dim, dim, rank)
        self.w1 = nn.Linear(dim, 3 * dim)
        self.w2 = nn.Linear(3 * dim, dim)
        for module in (self.norm1, self.norm2, self.w1, self.w2):
            module.requires_grad_(False)

    def forward(self, x):
        b, s, d = x.shape
        qkv = self.qkv(self.norm1(x)).view(b, s, 3, self.heads, d // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        att = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(att.transpose(1, 2).reshape(b, s, d))
        return x + self.w2(F.silu(self.w1(self.norm2(x))))


class Decoder(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.tok = nn.Embedding(cfg["vocab"], cfg["dim"]).requires_grad_(False)
        self.layers = nn.ModuleList(Layer(cfg["dim"], cfg["heads"], cfg["rank"]) for _ in range(cfg["layers"]))
        self.output = nn.Linear(cfg["dim"], cfg["vocab"], bias=False).requires_grad_(False)

    def forward(self, tokens):
        x = self.tok(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.output(x)


def collate(samples, ignore):
    tokens = torch.stack(samples)
    labels = tokens.clone()
    labels[:, :64] = ignore
    return tokens, labels


class Recipe:
    def __init__(self, cfg):
        self.cfg = cfg
        self.device = torch.device("cuda")

    def setup(self):
        cfg = self.cfg
        with self.device:
            self.model = Decoder(cfg)
        trainable = [p for p in self.model.parameters() if p.requires_grad]
        log.info("%d trainable tensors", len(trainable))
        self.optimizer = torch.optim.AdamW(trainable, lr=cfg["lr"])
        self.loss_fn = nn.CrossEntropyLoss(ignore_index=-100)
        data = torch.randint(0, cfg["vocab"], (cfg["max_steps"] * cfg["batch_size"], cfg["seq_len"]))
        self.loader = DataLoader(data, batch_size=cfg["batch_size"], shuffle=True,
                                 collate_fn=partial(collate, ignore=-100))

    def train(self):
        cfg = self.cfg
        running = 0.0
        for idx, (tokens, labels) in enumerate(self.loader):
            tokens, labels = tokens.to(self.device), labels.to(self.device)
            logits = self.model(tokens)
            # shift so that tokens < n predict n
            logits = logits[..., :-1, :].contiguous()
            labels = labels[..., 1:].contiguous()
            logits = logits.view(-1, logits.size(-1))
            loss = self.loss_fn(logits, labels.view(-1))
            loss = loss / cfg["grad_accum"]
            running += loss.item()
            loss.backward()
            if (idx + 1) % cfg["grad_accum"] == 0:
                self.optimizer.step()
                self.optimizer.zero_grad(set_to_none=True)
            if (idx + 1) % cfg["log_every"] == 0:
                log.info("step %d loss %.4f", idx + 1, running / cfg["log_every"])
                running = 0.0


def main():
    torch.manual_seed(42)
    recipe = Recipe(CFG)
    recipe.setup()
    recipe.train()


if __name__ == "__main__":
    main()
