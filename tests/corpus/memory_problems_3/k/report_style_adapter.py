"""Teaches a latent diffusion transformer an illustrator's style with adapters."""
import argparse

import torch
import torch.nn.functional as F

from painter.adapters import attach
from painter.transformer import LatentTransformer


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("device", nargs="?", default="cuda")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--rank", type=int, default=8)
    parser.add_argument("--recompute", action=argparse.BooleanOptionalAction, default=True)
    return parser.parse_args()


class NoiseSchedule:
    def __init__(self, steps, device):
        beta = torch.linspace(1e-4, 0.02, steps)
        self.alpha_bar = torch.cumprod(1 - beta, 0).to(device)
        self.steps = steps

    def corrupt(self, latent, noise, t):
        a = self.alpha_bar[t].reshape(-1, 1, 1, 1)
        return a.sqrt() * latent + (1 - a).sqrt() * noise


def drawings(batch, generator, device):
    """Pre-computed latents and prompt embeddings of the drawings."""
    while True:
        latent = torch.randn(batch, 4, 64, 64, generator=generator)
        prompt = torch.randn(batch, 256, generator=generator)
        yield latent.to(device), prompt.to(device)


@torch.no_grad()
def preview(model, schedule, device, steps=4):
    latent = torch.randn(1, 4, 64, 64, device=device)
    prompt = torch.zeros(1, 256, device=device)
    for t in range(schedule.steps - 1, 0, -schedule.steps // steps):
        index = torch.full((1,), t, device=device)
        noise = model(latent, index, prompt)
        a = schedule.alpha_bar[t]
        latent = (latent - (1 - a).sqrt() * noise) / a.sqrt()
    return latent.abs().mean().item()


def main():
    args = parse()
    torch.manual_seed(9)
    generator = torch.Generator().manual_seed(9)
    model = LatentTransformer().to(args.device)
    if args.recompute:
        model.enable_recompute()
    trainable = attach(model, rank=args.rank)
    model.to(args.device)
    optimizer = torch.optim.AdamW(trainable, lr=1e-4)
    schedule = NoiseSchedule(1000, args.device)
    print(f"trainable {sum(p.numel() for p in trainable) / 1e6:.2f} M, recompute {model.recompute}")
    stream = drawings(args.batch, generator, args.device)
    for step in range(args.steps):
        latent, prompt = next(stream)
        t = torch.randint(0, schedule.steps, (args.batch,), generator=generator).to(args.device)
        noise = torch.randn_like(latent)
        predicted = model(schedule.corrupt(latent, noise, t), t, prompt)
        loss = F.mse_loss(predicted, noise)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 4 == 0:
            print(f"step {step} loss {loss.item():.4f} preview {preview(model, schedule, args.device):.3f}",
                  flush=True)
    print("done")


if __name__ == "__main__":
    main()
