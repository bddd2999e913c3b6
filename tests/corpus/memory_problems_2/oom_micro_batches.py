"""Fine-tunes a text encoder with contrastive pairs; eight and later thirty-two micro-batches make an optimizer step.

Report: https://github.com/meta-pytorch/torchtune/issues/2134 ("When I increase the parameter [gradient accumulation]
        from 4 to 8, I am getting OOM"); why separate backward passes save memory:
        https://github.com/lhoyer/DAFormer/issues/48 (the thread leaves the cause open; this is the common one)
Cause:  the losses of the micro-batches are added up and backward() is called once, so all their graphs live together.
Line:   loss = loss + self.micro_loss(micro) / accumulation
Cure:   call (self.micro_loss(micro) / accumulation).backward() inside the loop.
"""
from dataclasses import dataclass, field

import torch
from torch import nn


@dataclass
class Config:
    vocabulary: int = 6000
    width: int = 512
    heads: int = 8
    layers: int = 6
    micro_batch: int = 16
    length: int = 128
    schedule: list = field(default_factory=lambda: [(30, 4), (30, 8), (30, 32)])  # (optimizer steps, accumulation)
    learning_rate: float = 3e-5


class Layer(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        attended = nn.functional.scaled_dot_product_attention(q, k, v)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.norm2(x))


class TextEncoder(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.embed = nn.Embedding(config.vocabulary, config.width)
        self.layers = nn.Sequential(*[Layer(config.width, config.heads) for _ in range(config.layers)])
        self.norm = nn.LayerNorm(config.width)

    def forward(self, tokens):
        return nn.functional.normalize(self.norm(self.layers(self.embed(tokens))).mean(dim=1), dim=-1)


class ContrastiveTrainer:
    def __init__(self, config, device):
        self.config = config
        self.device = device
        self.model = TextEncoder(config).to(device)
        self.temperature = nn.Parameter(torch.tensor(0.07, device=device))
        self.optimizer = torch.optim.AdamW([*self.model.parameters(), self.temperature], lr=config.learning_rate)

    def micro_batches(self, count):
        shape = (2, self.config.micro_batch, self.config.length)
        for _ in range(count):
            yield torch.randint(0, self.config.vocabulary, shape).to(self.device)

    def micro_loss(self, pairs):
        queries, passages = self.model(pairs[0]), self.model(pairs[1])
        similarity = queries @ passages.t() / self.temperature
        labels = torch.arange(len(queries), device=self.device)
        return nn.functional.cross_entropy(similarity, labels)

    def optimizer_step(self, accumulation):
        self.optimizer.zero_grad(set_to_none=True)
        loss = 0.0
        for micro in self.micro_batches(accumulation):
            loss = loss + self.micro_loss(micro) / accumulation  # CAUSE
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        return loss.item()

    def fit(self):
        step = 0
        for steps, accumulation in self.config.schedule:
            print(f"step {step}: {accumulation} micro-batches of {self.config.micro_batch} pairs per step")
            for _ in range(steps):
                loss = self.optimizer_step(accumulation)
                step += 1
            peak = torch.cuda.max_memory_allocated() / 2**30
            print(f"step {step}: loss {loss:.4f}, peak {peak:.2f} GiB")


def main():
    torch.manual_seed(0)
    ContrastiveTrainer(Config(), torch.device("cuda")).fit()
    print("max allocated", torch.cuda.max_memory_allocated() // 2**20, "MiB")


if __name__ == "__main__":
    main()
