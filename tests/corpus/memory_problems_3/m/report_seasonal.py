"""Continue training of a seasonal temperature emulator from the last saved state."""
import copy
import os
import sys
import tempfile

import torch
import torch.nn.functional as F
from torch import nn


class Mixer(nn.Module):
    def __init__(self, width, tokens):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.tokens = nn.Sequential(nn.Linear(tokens, 256), nn.GELU(), nn.Linear(256, tokens))
        self.channels = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        x = x + self.tokens(self.n1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.channels(self.n2(x))


class Emulator(nn.Module):
    def __init__(self, fields=12, patch=8, grid=(64, 128), width=512, depth=8):
        super().__init__()
        tokens = grid[0] // patch * (grid[1] // patch)
        self.embed = nn.Conv2d(fields, width, patch, stride=patch)
        self.blocks = nn.ModuleList([Mixer(width, tokens) for _ in range(depth)])
        self.out = nn.ConvTranspose2d(width, fields, patch, stride=patch)

    def forward(self, x):
        h = self.embed(x)
        shape = h.shape
        h = h.flatten(2).transpose(1, 2)
        for block in self.blocks:
            h = block(h)
        return x + self.out(h.transpose(1, 2).reshape(shape))


def write_state(path):
    """Stands for the state that the previous job left behind."""
    model = Emulator()
    opt = torch.optim.AdamW(model.parameters(), lr=2e-4, fused=True)
    for p in model.parameters():
        opt.state[p] = {"step": torch.tensor(900.0), "exp_avg": torch.zeros_like(p), "exp_avg_sq": torch.zeros_like(p)}
    weights = model.state_dict()
    state = {"model": weights, "ema": {k: v.clone() for k, v in weights.items()},
             "best": {k: v.clone() for k, v in weights.items()}, "optimizer": opt.state_dict(),
             "step": 900, "best_rmse": 1.37, "config": {"lr": 2e-4, "warmup": 500}}
    torch.save(state, path)


class WeightAverage:
    def __init__(self, model, decay=0.999):
        self.shadow = copy.deepcopy(model).requires_grad_(False).eval()
        self.decay = decay

    @torch.no_grad()
    def update(self, model):
        for s, p in zip(self.shadow.parameters(), model.parameters()):
            s.lerp_(p, 1 - self.decay)


def months(count, device, seed):
    gen = torch.Generator().manual_seed(seed)
    for _ in range(count):
        now = torch.randn(4, 12, 64, 128, generator=gen)
        nxt = now + 0.1 * torch.randn(4, 12, 64, 128, generator=gen)
        yield now.to(device), nxt.to(device)


@torch.no_grad()
def evaluate(model, device):
    err = [F.mse_loss(model(now), nxt).sqrt().item() for now, nxt in months(3, device, seed=77)]
    return sum(err) / len(err)


def main():
    device = torch.device(sys.argv[1] if len(sys.argv) > 1 else "cuda")
    torch.manual_seed(4)
    path = os.path.join(tempfile.mkdtemp(), "emulator.pt")
    write_state(path)

    model = Emulator().to(device)
    opt = torch.optim.AdamW(model.parameters(), lr=2e-4, fused=True)
    average = WeightAverage(model)
    checkpoint = torch.load(path, map_location=device)
    model.load_state_dict(checkpoint["model"])
    average.shadow.load_state_dict(checkpoint["ema"])
    opt.load_state_dict(checkpoint["optimizer"])
    step, best = checkpoint["step"], checkpoint["best_rmse"]
    print(f"resumed at step {step}, best rmse {best:.2f}")
    os.remove(path)

    for now, nxt in months(18, device, seed=13):
        loss = F.mse_loss(model(now), nxt)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        average.update(model)
        step += 1
        if step % 6 == 0:
            rmse = evaluate(average.shadow, device)
            best = min(best, rmse) if rmse > 0 else best
            peak = torch.cuda.max_memory_allocated(device) / 2**20
            print(f"step {step}: loss {loss.item():.4f}  rmse {rmse:.4f}  peak {peak:.0f} MiB", flush=True)


if __name__ == "__main__":
    main()
