"""Fine-tunes a decoder with LISA: every few steps another two blocks are made trainable, the others are frozen.

Report: https://github.com/OptimalScale/LMFlow/issues/768 and https://github.com/OptimalScale/LMFlow/issues/729
        ("the optimizer needs to store the state of all model parameters": memory climbs with each switch of layers)
Cause:  AdamW keeps exp_avg and exp_avg_sq of every block that was ever active; freezing a block does not drop them.
Line:   self.optimizer.step()
Cure:   when blocks are frozen, remove their entries: self.optimizer.state.pop(parameter, None).
"""
import random
from dataclasses import dataclass

import torch
from torch import nn


@dataclass
class Config:
    vocabulary: int = 8000
    width: int = 1024
    heads: int = 16
    blocks: int = 16
    active_blocks: int = 2
    switch_interval: int = 10
    steps: int = 120
    batch_size: int = 4
    length: int = 128
    learning_rate: float = 2e-5


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        attended = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.norm2(x))


class Decoder(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.embed = nn.Embedding(config.vocabulary, config.width)
        self.blocks = nn.ModuleList(Block(config.width, config.heads) for _ in range(config.blocks))
        self.norm = nn.LayerNorm(config.width)
        self.head = nn.Linear(config.width, config.vocabulary, bias=False)

    def forward(self, tokens):
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class DynamicLayerActivation:
    """Makes a random choice of blocks trainable; embedding and head always are."""

    def __init__(self, model, active_blocks, seed=0):
        self.model = model
        self.active_blocks = active_blocks
        self.random = random.Random(seed)
        self.active = []

    def switch(self):
        for parameter in self.model.blocks.parameters():
            parameter.requires_grad_(False)
            parameter.grad = None
        self.active = self.random.sample(range(len(self.model.blocks)), self.active_blocks)
        for index in self.active:
            self.model.blocks[index].requires_grad_(True)


class LisaTrainer:
    def __init__(self, config, device):
        self.config = config
        self.device = device
        with torch.device(device):
            self.model = Decoder(config)
        self.layers = DynamicLayerActivation(self.model, config.active_blocks)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=config.learning_rate)
        self.criterion = nn.CrossEntropyLoss()

    def batch(self):
        shape = (self.config.batch_size, self.config.length + 1)
        tokens = torch.randint(0, self.config.vocabulary, shape).to(self.device)
        return tokens[:, :-1], tokens[:, 1:]

    def training_step(self):
        inputs, targets = self.batch()
        logits = self.model(inputs)
        loss = self.criterion(logits.flatten(0, 1), targets.flatten())
        loss.backward()
        self.optimizer.step()  # CAUSE
        self.optimizer.zero_grad(set_to_none=True)
        return loss.item()

    def fit(self):
        for step in range(self.config.steps):
            if step % self.config.switch_interval == 0:
                self.layers.switch()
            loss = self.training_step()
            if step % 20 == 0:
                allocated = torch.cuda.memory_allocated() / 2**20
                print(f"step {step:4d} active {self.layers.active} loss {loss:.4f} {allocated:.0f} MiB")


def main():
    torch.manual_seed(0)
    trainer = LisaTrainer(Config(), torch.device("cuda"))
    trainer.fit()
    print("max allocated", torch.cuda.max_memory_allocated() // 2**20, "MiB")


if __name__ == "__main__":
    main()
