"""Fine-tunes a language model on long documents, cut into segments that share a compressive memory."""
import argparse
from dataclasses import dataclass

import torch
from torch import nn


@dataclass
class ModelConfig:
    vocabulary: int = 8000
    width: int = 512
    heads: int = 8
    layers: int = 6


class InfiniAttention(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.heads = config.heads
        self.qkv = nn.Linear(config.width, 3 * config.width, bias=False)
        self.out = nn.Linear(config.width, config.width, bias=False)
        self.gate = nn.Parameter(torch.zeros(config.heads, 1, 1))

    def retrieve(self, q, memory):
        matrix, normalizer = memory
        sigma = nn.functional.elu(q) + 1
        return (sigma @ matrix) / (sigma @ normalizer).clamp_min(1e-6)

    def write(self, k, v, memory):
        sigma = nn.functional.elu(k) + 1
        matrix, normalizer = sigma.transpose(-1, -2) @ v, sigma.sum(dim=-2, keepdim=True).transpose(-1, -2)
        if memory is None:
            return matrix, normalizer
        return memory[0] + matrix, memory[1] + normalizer

    def forward(self, x, memory):
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        local = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        if memory is not None:
            share = torch.sigmoid(self.gate)
            local = share * self.retrieve(q, memory) + (1 - share) * local
        return self.out(local.transpose(1, 2).flatten(2)), self.write(k, v, memory)


class Block(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.attention = InfiniAttention(config)
        self.norm_1, self.norm_2 = nn.LayerNorm(config.width), nn.LayerNorm(config.width)
        self.mlp = nn.Sequential(
            nn.Linear(config.width, 4 * config.width), nn.SiLU(), nn.Linear(4 * config.width, config.width)
        )

    def forward(self, x, memory):
        attended, memory = self.attention(self.norm_1(x), memory)
        x = x + attended
        return x + self.mlp(self.norm_2(x)), memory


class InfiniModel(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.embedding = nn.Embedding(config.vocabulary, config.width)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.head = nn.Linear(config.width, config.vocabulary, bias=False)

    def forward(self, tokens, memories, labels):
        x, updated = self.embedding(tokens), []
        for block, memory in zip(self.blocks, memories):
            x, memory = block(x, memory)
            updated.append(memory)
        loss = nn.functional.cross_entropy(self.head(x).flatten(0, 1), labels.flatten())
        return loss, updated


def documents(count, batch_size, config, seed=7):
    generator = torch.Generator().manual_seed(seed)
    for _ in range(count):
        length = int(torch.randint(5000, 9000, (), generator=generator))
        yield torch.randint(0, config.vocabulary, (batch_size, length), generator=generator)


def train_document(model, tokens, segment_length):
    """Accumulates the gradients of all segments of a batch of documents."""
    segments = list(zip(tokens[:, :-1].split(segment_length, dim=1), tokens[:, 1:].split(segment_length, dim=1)))
    memories = [None] * len(model.blocks)
    total = 0.0
    for inputs, labels in segments:
        loss, memories = model(inputs, memories, labels)
        (loss / len(segments)).backward(retain_graph=True)
        total += loss.item()
    return total / len(segments), len(segments)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--documents", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=2)
    parser.add_argument("--segment-length", type=int, default=512)
    options = parser.parse_args()
    torch.manual_seed(0)
    config = ModelConfig()
    model = InfiniModel(config).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=options.documents)
    for number, tokens in enumerate(documents(options.documents, options.batch_size, config)):
        torch.cuda.reset_peak_memory_stats()
        loss, segments = train_document(model, tokens.cuda(), options.segment_length)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
        print(f"batch {number}: {segments} segments, loss {loss:.4f}, "
              f"peak {torch.cuda.max_memory_allocated() / 2**20:.0f} MiB")


if __name__ == "__main__":
    main()
