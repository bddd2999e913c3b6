"""Auto-decoder for signed distance functions: one latent grid per scanned shape.

Shapes arrive one after the other from the scanner; each gets a few iterations.
"""
import torch
import torch.nn as nn
import torch.nn.functional as F


class Config:
    shapes = 120
    iterations = 3
    points = 1024
    channels = 12
    resolution = 12
    lr_net = 5e-4
    lr_code = 1e-3
    code_reg = 1e-4


class LatentGrid(nn.Module):
    def __init__(self, channels, resolution):
        super().__init__()
        self.values = nn.Parameter(0.01 * torch.randn(1, channels, resolution, resolution, resolution))

    def forward(self, xyz):
        grid = xyz.view(1, -1, 1, 1, 3)
        out = F.grid_sample(self.values, grid, align_corners=True)
        return out.view(self.values.shape[1], -1).T


class Decoder(nn.Module):
    def __init__(self, channels, width=128):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(channels + 3, width), nn.Softplus(beta=100),
            nn.Linear(width, width), nn.Softplus(beta=100),
            nn.Linear(width, 1))

    def forward(self, xyz, code):
        return self.layers(torch.cat([xyz, code], dim=-1)).squeeze(-1)


class Scanner:
    """Yields points and their distances to random ellipsoids."""

    def __init__(self, cfg, seed):
        self.cfg = cfg
        self.g = torch.Generator().manual_seed(seed)

    def __iter__(self):
        for i in range(self.cfg.shapes):
            axes = 0.3 + 0.6 * torch.rand(3, generator=self.g)
            xyz = 2 * torch.rand(self.cfg.points, 3, generator=self.g) - 1
            sdf = (xyz / axes).norm(dim=1) - 1
            yield f"scan_{i:04d}", xyz, sdf * axes.min()


def clamped_l1(pred, target, delta=0.1):
    return F.l1_loss(pred.clamp(-delta, delta), target.clamp(-delta, delta))


def fit_shape(decoder, optimizer, xyz, sdf, cfg):
    grid = LatentGrid(cfg.channels, cfg.resolution).cuda()
    optimizer.add_param_group({"params": grid.parameters(), "lr": cfg.lr_code})
    for _ in range(cfg.iterations):
        optimizer.zero_grad(set_to_none=True)
        pred = decoder(xyz, grid(xyz))
        loss = clamped_l1(pred, sdf) + cfg.code_reg * grid.values.pow(2).mean()
        loss.backward()
        optimizer.step()
    return loss.detach(), grid.values.detach().half().cpu()


def main():
    cfg = Config()
    torch.manual_seed(9)
    decoder = Decoder(cfg.channels).cuda()
    optimizer = torch.optim.Adam(decoder.parameters(), lr=cfg.lr_net)
    codes = {}
    for name, xyz, sdf in Scanner(cfg, seed=9):
        loss, codes[name] = fit_shape(decoder, optimizer, xyz.cuda(), sdf.cuda(), cfg)
        if len(codes) % 40 == 0:
            size = sum(c.numel() for c in codes.values()) * 2 / 2 ** 20
            print(f"{name}: loss {loss.item():.4f}, {len(codes)} codes, {size:.1f} MiB on the host")


if __name__ == "__main__":
    main()
