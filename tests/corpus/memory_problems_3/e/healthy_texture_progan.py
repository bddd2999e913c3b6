"""Progressively grown GAN for seamless textures: 8, 16, ... 128 pixels, new blocks appear at each resolution."""
import argparse

import torch
from torch import nn
import torch.nn.functional as F

CHANNELS = {8: 256, 16: 256, 32: 128, 64: 64, 128: 32}


def block(cin, cout):
    return nn.Sequential(nn.Conv2d(cin, cout, 3, padding=1, padding_mode="circular"), nn.LeakyReLU(0.2),
                         nn.Conv2d(cout, cout, 3, padding=1, padding_mode="circular"), nn.LeakyReLU(0.2))


class Generator(nn.Module):
    def __init__(self, latent=256):
        super().__init__()
        self.start = nn.Linear(latent, 256 * 4 * 4)
        self.blocks, self.to_rgb = nn.ModuleList(), nn.ModuleList()

    def grow(self, cin, cout):
        device = self.start.weight.device
        self.blocks.append(block(cin, cout).to(device))
        self.to_rgb.append(nn.Conv2d(cout, 3, 1).to(device))

    def forward(self, z, alpha):
        x = self.start(z).view(-1, 256, 4, 4)
        previous = None
        for b in self.blocks:
            previous = x
            x = b(F.interpolate(x, scale_factor=2))
        rgb = self.to_rgb[-1](x)
        if alpha < 1 and len(self.to_rgb) > 1:
            rgb = alpha * rgb + (1 - alpha) * F.interpolate(self.to_rgb[-2](previous), scale_factor=2)
        return torch.tanh(rgb)


class Discriminator(nn.Module):
    def __init__(self):
        super().__init__()
        self.final = nn.Linear(256 * 4 * 4, 1)
        self.blocks, self.from_rgb = nn.ModuleList(), nn.ModuleList()

    def grow(self, cin, cout):
        device = self.final.weight.device
        self.blocks.insert(0, block(cout, cin).to(device))
        self.from_rgb.insert(0, nn.Conv2d(3, cout, 1).to(device))

    def forward(self, x):
        x = self.from_rgb[0](x)
        for b in self.blocks:
            x = F.avg_pool2d(b(x), 2)
        return self.final(x.flatten(1))


def optimizers(g, d, lr):
    return torch.optim.Adam(g.parameters(), lr, betas=(0.0, 0.99)), torch.optim.Adam(d.parameters(), lr, betas=(0.0, 0.99))


def train_stage(g, d, size, steps, batch, lr):
    g_opt, d_opt = optimizers(g, d, lr)
    for step in range(steps):
        alpha = min(1.0, 2 * (step + 1) / steps)
        real = torch.rand(batch, 3, size, size, device="cuda") * 2 - 1
        fake = g(torch.randn(batch, 256, device="cuda"), alpha)
        d_loss = F.relu(1 - d(real)).mean() + F.relu(1 + d(fake.detach())).mean()
        d_opt.zero_grad()
        d_loss.backward()
        d_opt.step()
        g_loss = -d(fake).mean()
        g_opt.zero_grad()
        g_loss.backward()
        g_opt.step()
    print(f"{size}x{size}: d {d_loss.item():.3f} g {g_loss.item():.3f}, "
          f"{sum(p.numel() for p in g.parameters()) / 1e6:.1f} M parameters in the generator")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=20, help="steps at the first resolution")
    parser.add_argument("--batch", type=int, default=6)
    args = parser.parse_args()
    g, d = Generator().cuda(), Discriminator().cuda()
    width = 256
    for size, channels in CHANNELS.items():
        g.grow(width, channels)
        d.grow(width, channels)
        width = channels
        train_stage(g, d, size, args.steps if size < 128 else 3 * args.steps, args.batch, 1e-3)


if __name__ == "__main__":
    main()
