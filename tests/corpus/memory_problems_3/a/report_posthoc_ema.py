"""Trains a small diffusion model and snapshots two moving averages of its weights for post-hoc EMA."""
import math
import tempfile
from copy import deepcopy
from functools import partial
from pathlib import Path

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, inputs, outputs, time_width):
        super().__init__()
        self.conv_1 = nn.Conv2d(inputs, outputs, 3, padding=1)
        self.conv_2 = nn.Conv2d(outputs, outputs, 3, padding=1)
        self.time = nn.Linear(time_width, outputs)
        self.norm = nn.GroupNorm(8, outputs)
        self.residual = nn.Conv2d(inputs, outputs, 1)

    def forward(self, x, time):
        hidden = self.conv_1(x) + self.time(time)[:, :, None, None]
        return self.conv_2(nn.functional.silu(self.norm(hidden))) + self.residual(x)


class Denoiser(nn.Module):
    def __init__(self, width=160, time_width=256):
        super().__init__()
        self.time_width = time_width
        self.input = nn.Conv2d(3, width, 3, padding=1)
        self.down = nn.ModuleList([Block(width, width, time_width), Block(width, 2 * width, time_width)])
        self.middle = Block(2 * width, 4 * width, time_width)
        self.up = nn.ModuleList([Block(6 * width, 2 * width, time_width), Block(3 * width, width, time_width)])
        self.output = nn.Conv2d(width, 3, 3, padding=1)

    def embed(self, sigma):
        half = self.time_width // 2
        frequencies = torch.exp(-math.log(10000) * torch.arange(half, device=sigma.device) / half)
        angles = sigma.log()[:, None] * frequencies
        return torch.cat([angles.sin(), angles.cos()], dim=1)

    def forward(self, x, sigma):
        time, skips = self.embed(sigma), []
        x = self.input(x)
        for block in self.down:
            x = block(x, time)
            skips.append(x)
            x = nn.functional.avg_pool2d(x, 2)
        x = self.middle(x, time)
        for block in self.up:
            x = nn.functional.interpolate(x, scale_factor=2)
            x = block(torch.cat([x, skips.pop()], dim=1), time)
        return self.output(x)


class KarrasEMA(nn.Module):
    """A moving average of a model whose decay follows a power law of the step."""

    def __init__(self, model, sigma_rel):
        super().__init__()
        self.ema_model = deepcopy(model).requires_grad_(False)
        self.gamma = self.solve_gamma(sigma_rel)
        self.register_buffer("step", torch.zeros((), dtype=torch.long))
        self.average = partial(self.lerp_all, skip=("num_batches_tracked",))

    @staticmethod
    def solve_gamma(sigma_rel):
        candidates = [0.1 * number for number in range(1, 400)]
        return min(candidates, key=lambda g: abs(math.sqrt(g + 1) / ((g + 2) * math.sqrt(g + 3)) - sigma_rel))

    @torch.no_grad()
    def lerp_all(self, model, decay, skip=()):
        current = dict(model.named_parameters())
        for name, value in self.ema_model.named_parameters():
            if name not in skip:
                value.lerp_(current[name], 1 - decay)

    def update(self, model, step):
        self.step.fill_(step)
        self.average(model, (1 - 1 / step) ** (self.gamma + 1))


class PostHocEMA:
    def __init__(self, model, folder, sigma_rels=(0.05, 0.28), every=10, dtype=torch.float16):
        self.ema_models = [KarrasEMA(model, sigma).to("cuda") for sigma in sigma_rels]
        self.folder = Path(folder)
        self.every = every
        self.checkpoint_dtype = dtype

    def update(self, model, step):
        for ema in self.ema_models:
            ema.update(model, step)
        if step % self.every == 0:
            self.checkpoint(step)

    def checkpoint(self, step):
        for index, ema in enumerate(self.ema_models):
            package = deepcopy(ema).to(self.checkpoint_dtype).state_dict()
            torch.save(package, self.folder / f"{index}.{step}.pt")


def main(steps=160, batch_size=16):
    torch.manual_seed(0)
    model = Denoiser().cuda()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-4)
    with tempfile.TemporaryDirectory() as folder:
        averages = PostHocEMA(model, folder)
        for step in range(1, steps + 1):
            images = torch.rand(batch_size, 3, 32, 32, device="cuda") * 2 - 1
            sigma = torch.exp(torch.randn(batch_size) * 1.2 - 1.2).cuda()
            noisy = images + sigma[:, None, None, None] * torch.randn_like(images)
            loss = (model(noisy, sigma) - images).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            averages.update(model, step)
            if step % 20 == 0:
                print(f"step {step}: loss {loss.item():.4f}, {torch.cuda.memory_allocated() / 2**20:.0f} MiB allocated")
        print(f"{len(list(averages.folder.iterdir()))} snapshots, peak {torch.cuda.max_memory_allocated() / 2**20:.0f} MiB")


if __name__ == "__main__":
    main()
