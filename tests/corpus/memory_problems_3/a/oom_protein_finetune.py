"""Fine-tunes a protein language model on a regression task (melting temperature)."""
import argparse
import math

import torch
from torch import nn

AMINO_ACIDS = 33


class EncoderLayer(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.project = nn.Linear(width, width)
        self.expand = nn.Linear(width, 4 * width)
        self.contract = nn.Linear(4 * width, width)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        attended = nn.functional.scaled_dot_product_attention(q, k, v)
        x = x + self.project(attended.transpose(1, 2).reshape(batch, length, width))
        return x + self.contract(nn.functional.gelu(self.expand(self.norm2(x))))


class ProteinModel(nn.Module):
    def __init__(self, width, layers, heads):
        super().__init__()
        self.embed = nn.Embedding(AMINO_ACIDS, width, padding_idx=1)
        self.layers = nn.ModuleList(EncoderLayer(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.regress = nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 1))

    def forward(self, tokens):
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.regress(self.norm(x).mean(dim=1)).squeeze(-1)


def sequences(batches, batch_size, length):
    for _ in range(batches):
        tokens = torch.randint(4, 24, (batch_size, length))
        temperatures = 40 + 20 * torch.randn(batch_size)
        yield tokens, temperatures


def warmup_cosine(step, warmup, total):
    if step < warmup:
        return (step + 1) / warmup
    return 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, total - warmup)))


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--width", type=int, default=1536)
    parser.add_argument("--layers", type=int, default=22)
    parser.add_argument("--heads", type=int, default=24)
    parser.add_argument("--batch-size", type=int, default=2)
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--lr", type=float, default=1e-5)
    return parser.parse_args()


def main():
    arguments = parse_arguments()
    device = torch.device("cuda")
    with device:
        model = ProteinModel(arguments.width, arguments.layers, arguments.heads)
    size = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    print(f"weights: {size / 2**30:.2f} GiB of {torch.cuda.get_device_properties(0).total_memory / 2**30:.0f} GiB")

    no_decay = [p for p in model.parameters() if p.ndim < 2]
    decay = [p for p in model.parameters() if p.ndim >= 2]
    optimizer = torch.optim.AdamW(
        [{"params": decay, "weight_decay": 0.01}, {"params": no_decay, "weight_decay": 0.0}], lr=arguments.lr
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: warmup_cosine(step, 10, arguments.steps)
    )
    for step, (tokens, temperatures) in enumerate(sequences(arguments.steps, arguments.batch_size, arguments.length)):
        predicted = model(tokens.to(device))
        loss = nn.functional.mse_loss(predicted, temperatures.to(device))
        loss.backward()
        print(f"step {step}: backward done, {torch.cuda.memory_allocated() / 2**30:.2f} GiB")
        optimizer.step()
        schedule.step()
        optimizer.zero_grad(set_to_none=True)


if __name__ == "__main__":
    main()
