"""Poster generator: latent diffusion sampling for a list of prompts, several images for each prompt."""
import argparse
import hashlib
import math

import torch
import torch.nn.functional as F
from torch import nn


class ResBlock(nn.Module):
    def __init__(self, cin, cout, emb=None):
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(16, cin), nn.GroupNorm(16, cout)
        self.conv1, self.conv2 = nn.Conv2d(cin, cout, 3, padding=1), nn.Conv2d(cout, cout, 3, padding=1)
        self.emb = nn.Linear(emb, cout) if emb else None
        self.skip = nn.Conv2d(cin, cout, 1) if cin != cout else nn.Identity()

    def forward(self, x, emb=None):
        h = self.conv1(F.silu(self.norm1(x)))
        if self.emb is not None:
            h = h + self.emb(emb)[:, :, None, None]
        return self.skip(x) + self.conv2(F.silu(self.norm2(h)))


class Denoiser(nn.Module):
    def __init__(self, channels=128, text=256):
        super().__init__()
        self.inp = nn.Conv2d(4, channels, 3, padding=1)
        self.down = ResBlock(channels, channels * 2, text)
        self.mid = ResBlock(channels * 2, channels * 2, text)
        self.up = ResBlock(channels * 3, channels, text)
        self.out = nn.Conv2d(channels, 4, 3, padding=1)
        self.time = nn.Linear(1, text)

    def forward(self, z, t, text):
        emb = text + self.time(t.view(-1, 1).to(text.dtype))
        h0 = self.inp(z)
        h = self.mid(self.down(F.avg_pool2d(h0, 2), emb), emb)
        return self.out(self.up(torch.cat([h0, F.interpolate(h, scale_factor=2.0)], dim=1), emb))


class AutoencoderDecoder(nn.Module):
    def __init__(self, widths=(256, 256, 128, 64)):
        super().__init__()
        self.inp = nn.Conv2d(4, widths[0], 3, padding=1)
        self.stages = nn.ModuleList(ResBlock(a, b) for a, b in zip(widths, widths[1:]))
        self.out = nn.Conv2d(widths[-1], 3, 3, padding=1)
        self.scaling = 0.18215

    def decode(self, z):
        h = self.inp(z / self.scaling)
        for stage in self.stages:
            h = stage(F.interpolate(h, scale_factor=2.0, mode="nearest"))
        return self.out(F.silu(h))


class TextEncoder(nn.Module):
    def __init__(self, dim=256, vocab=4096):
        super().__init__()
        self.vocab = vocab
        self.embed = nn.EmbeddingBag(vocab, dim)

    def tokenize(self, prompt):
        return [int(hashlib.md5(w.encode()).hexdigest(), 16) % self.vocab for w in prompt.split()] or [0]

    def forward(self, prompts, device):
        rows = [torch.tensor(self.tokenize(p), device=device) for p in prompts]
        offsets = torch.tensor([0] + [len(r) for r in rows[:-1]], device=device).cumsum(0)
        return self.embed(torch.cat(rows), offsets)


class Pipeline:
    def __init__(self, device, dtype):
        self.device, self.dtype = device, dtype
        self.text = TextEncoder().to(device, dtype).eval()
        self.unet = Denoiser().to(device, dtype).eval()
        self.vae = AutoencoderDecoder().to(device, dtype).eval()

    @torch.no_grad()
    def __call__(self, prompts, steps=20, height=512, width=512, guidance=7.5):
        text = self.text(prompts + [""] * len(prompts), self.device)
        latents = torch.randn(len(prompts), 4, height // 8, width // 8, device=self.device, dtype=self.dtype)
        for i in range(steps):
            t = torch.full((2 * len(prompts),), 1.0 - i / steps, device=self.device)
            cond, uncond = self.unet(torch.cat([latents, latents]), t, text).chunk(2)
            noise = uncond + guidance * (cond - uncond)
            latents = latents - noise * (math.cos(i / steps) / steps)
        images = self.vae.decode(latents)
        images = (images / 2 + 0.5).clamp(0, 1)
        return images.float().cpu().permute(0, 2, 3, 1).numpy()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--images-per-prompt", type=int, default=16)
    parser.add_argument("--steps", type=int, default=25)
    args = parser.parse_args()
    pipe = Pipeline("cuda", torch.float16)
    prompts = ["a lighthouse in winter, oil on canvas", "two foxes playing chess, woodcut",
               "isometric greenhouse full of ferns"]
    for prompt in prompts:
        images = pipe([prompt] * args.images_per_prompt, steps=args.steps)
        print(f"{prompt!r}: {images.shape[0]} images of {images.shape[1]}x{images.shape[2]}")


if __name__ == "__main__":
    main()
