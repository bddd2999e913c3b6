"""Healthy: gradual unfreezing of a text classifier; batches come through a prefetcher with its own stream.

Why it may look like a leak: each time a layer is unfrozen, gradients, optimizer states and saved activations are added.
Why it is none: after the last layer (step 150 of 240) nothing is added; the prefetcher holds two batches at most.
"""
from dataclasses import dataclass

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


@dataclass
class Config:
    vocabulary: int = 4000
    width: int = 640
    layers: int = 6
    classes: int = 4
    batch_size: int = 24
    length: int = 64
    steps: int = 240
    unfreeze_every: int = 30
    learning_rate: float = 1e-3
    decay_per_layer: float = 0.7


class Reviews(Dataset):
    def __init__(self, config, seed=0):
        self.config = config
        self.seed = seed

    def __len__(self):
        return self.config.steps * self.config.batch_size

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(self.seed + index)
        tokens = torch.randint(0, self.config.vocabulary, (self.config.length,), generator=generator)
        return tokens, index % self.config.classes


class Prefetcher:
    """Copies the next batch on a side stream while the current one is used."""

    def __init__(self, loader, device):
        self.loader = loader
        self.device = device
        self.stream = torch.cuda.Stream()

    def __iter__(self):
        batches = iter(self.loader)
        upcoming = self.load(batches)
        while upcoming is not None:
            torch.cuda.current_stream().wait_stream(self.stream)
            current = upcoming
            for tensor in current:
                tensor.record_stream(torch.cuda.current_stream())
            upcoming = self.load(batches)
            yield current

    def load(self, batches):
        batch = next(batches, None)
        if batch is None:
            return None
        with torch.cuda.stream(self.stream):
            return [tensor.to(self.device, non_blocking=True) for tensor in batch]


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.mix = nn.Conv1d(width, width, 3, padding=1, groups=8)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        x = x + self.mix(x.transpose(1, 2)).transpose(1, 2)
        return x + self.mlp(self.norm(x))


class TextClassifier(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.embed = nn.Embedding(config.vocabulary, config.width)
        self.blocks = nn.ModuleList(Block(config.width) for _ in range(config.layers))
        self.head = nn.Linear(config.width, config.classes)

    def forward(self, tokens):
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean(dim=1))


class GradualUnfreezing:
    """From the head down, one block more every few steps, each with a smaller learning rate."""

    def __init__(self, config, model):
        self.config = config
        self.waiting = list(model.blocks)
        model.requires_grad_(False)
        model.head.requires_grad_(True)
        self.optimizer = torch.optim.AdamW(model.head.parameters(), lr=config.learning_rate)

    def at_step(self, step):
        if step % self.config.unfreeze_every == 0 and self.waiting:
            block = self.waiting.pop().requires_grad_(True)
            depth = self.config.layers - len(self.waiting)
            rate = self.config.learning_rate * self.config.decay_per_layer**depth
            self.optimizer.add_param_group({"params": list(block.parameters()), "lr": rate})


def main():
    torch.manual_seed(0)
    config, device = Config(), torch.device("cuda")
    model = TextClassifier(config).to(device)
    unfreezing = GradualUnfreezing(config, model)
    loader = DataLoader(Reviews(config), batch_size=config.batch_size, shuffle=True, pin_memory=True)
    for step, (tokens, labels) in enumerate(Prefetcher(loader, device)):
        unfreezing.at_step(step)
        loss = nn.functional.cross_entropy(model(tokens), labels)
        unfreezing.optimizer.zero_grad()
        loss.backward()
        unfreezing.optimizer.step()
        if step % 30 == 0:
            print(f"step {step} loss {loss.item():.4f} groups {len(unfreezing.optimizer.param_groups)} "
                  f"{torch.cuda.memory_allocated() / 2**20:.0f} MiB")
    print("max allocated", torch.cuda.max_memory_allocated() // 2**20, "MiB")


if __name__ == "__main__":
    main()
