import argparse
import math
import os
import tempfile

import torch
from torch import nn, optim
from torch.nn import functional as F


class MappingNetwork(nn.Module):
    def __init__(self, dim, depth=8):
        super().__init__()
        layers = []
        for _ in range(depth):
            layers += [nn.Linear(dim, dim), nn.LeakyReLU(0.2)]
        self.net = nn.Sequential(*layers)

    def forward(self, z):
        return self.net(F.normalize(z, dim=1) * math.sqrt(z.shape[1]))


class StyledConv(nn.Module):
    def __init__(self, cin, cout, style, up=False):
        super().__init__()
        self.conv = nn.Conv2d(cin, cout, 3, padding=1)
        self.affine = nn.Linear(style, cin)
        self.up = up

    def forward(self, x, w):
        x = x * (1 + self.affine(w))[:, :, None, None]
        if self.up:
            x = F.interpolate(x, scale_factor=2, mode="nearest")
        return F.leaky_relu(self.conv(x), 0.2)


class Generator(nn.Module):
    def __init__(self, style=512, width=640):
        super().__init__()
        self.mapping = MappingNetwork(style)
        self.const = nn.Parameter(torch.randn(1, width, 4, 4))
        widths = [width, width, width, width // 2, width // 4]
        self.convs = nn.ModuleList()
        for a, b in zip(widths[:-1], widths[1:]):
            self.convs.append(StyledConv(a, b, style, up=True))
            self.convs.append(StyledConv(b, b, style))
        self.to_rgb = nn.Conv2d(widths[-1], 3, 1)

    def forward(self, z):
        w = self.mapping(z)
        x = self.const.expand(z.shape[0], -1, -1, -1)
        for conv in self.convs:
            x = conv(x, w)
        return self.to_rgb(x)


class Discriminator(nn.Module):
    def __init__(self, width=640):
        super().__init__()
        widths = [width // 4, width // 2, width, width, width]
        self.stem = nn.Conv2d(3, widths[0], 1)
        self.convs = nn.ModuleList(
            nn.Conv2d(a, b, 3, stride=2, padding=1) for a, b in zip(widths[:-1], widths[1:]))
        self.final = nn.Sequential(nn.Flatten(), nn.Linear(width * 16, width), nn.LeakyReLU(0.2), nn.Linear(width, 1))

    def forward(self, x):
        x = self.stem(x)
        for conv in self.convs:
            x = F.leaky_relu(conv(x), 0.2)
        return self.final(x)


def requires_grad(model, flag):
    for p in model.parameters():
        p.requires_grad = flag


def accumulate(ema, model, decay=0.999):
    ema_params = dict(ema.named_parameters())
    with torch.no_grad():
        for name, p in model.named_parameters():
            ema_params[name].mul_(decay).add_(p, alpha=1 - decay)


def train(args, generator, discriminator, g_ema, g_optim, d_optim, device):
    for i in range(args.start_iter, args.start_iter + args.iter):
        real = torch.rand(args.batch, 3, 64, 64, device=device) * 2 - 1

        requires_grad(generator, False)
        requires_grad(discriminator, True)
        fake = generator(torch.randn(args.batch, args.latent, device=device))
        d_loss = F.softplus(-discriminator(real)).mean() + F.softplus(discriminator(fake)).mean()
        discriminator.zero_grad()
        d_loss.backward()
        d_optim.step()

        requires_grad(generator, True)
        requires_grad(discriminator, False)
        fake = generator(torch.randn(args.batch, args.latent, device=device))
        g_loss = F.softplus(-discriminator(fake)).mean()
        generator.zero_grad()
        g_loss.backward()
        g_optim.step()
        accumulate(g_ema, generator)
        if i % 20 == 0:
            print(f"{i:06d} d: {d_loss.item():.4f} g: {g_loss.item():.4f}")


def export_initial(path):
    """Write a checkpoint of a short CPU run, as the cluster's preemption hook does."""
    g, d = Generator(), Discriminator()
    g_opt, d_opt = optim.Adam(g.parameters(), lr=2e-3, fused=True), optim.Adam(d.parameters(), lr=2e-3, fused=True)
    for model, opt in ((g, g_opt), (d, d_opt)):
        for p in model.parameters():
            p.grad = torch.zeros_like(p)
        opt.step()
    torch.save({"iter": 1000, "g": g.state_dict(), "d": d.state_dict(), "g_ema": g.state_dict(),
                "g_optim": g_opt.state_dict(), "d_optim": d_opt.state_dict()}, path)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--ckpt", default=os.path.join(tempfile.gettempdir(), f"style64-{os.getpid()}.pt"))
    parser.add_argument("--iter", type=int, default=60)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--latent", type=int, default=512)
    parser.add_argument("--lr", type=float, default=2e-3)
    args = parser.parse_args()
    device = "cuda"
    if not os.path.exists(args.ckpt):
        export_initial(args.ckpt)

    generator = Generator().to(device)
    discriminator = Discriminator().to(device)
    g_ema = Generator().to(device).eval()
    g_optim = optim.Adam(generator.parameters(), lr=args.lr, betas=(0.0, 0.99), fused=True)
    d_optim = optim.Adam(discriminator.parameters(), lr=args.lr, betas=(0.0, 0.99), fused=True)

    print("load model:", args.ckpt)
    ckpt = torch.load(args.ckpt, map_location=device)
    args.start_iter = ckpt["iter"]
    generator.load_state_dict(ckpt["g"])
    discriminator.load_state_dict(ckpt["d"])
    g_ema.load_state_dict(ckpt["g_ema"])
    g_optim.load_state_dict(ckpt["g_optim"])
    d_optim.load_state_dict(ckpt["d_optim"])

    train(args, generator, discriminator, g_ema, g_optim, d_optim, device)
    os.remove(args.ckpt)


if __name__ == "__main__":
    main()
