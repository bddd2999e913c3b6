"""Cloud removal for satellite time series: train a U-Net on masked composites."""
import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

BANDS = 6
TILE = 64
STEPS = 240


def conv(cin, cout):
    return nn.Sequential(nn.Conv2d(cin, cout, 3, padding=1), nn.GroupNorm(4, cout), nn.ReLU(inplace=True))


class UNet(nn.Module):
    def __init__(self, width=24):
        super().__init__()
        self.down1 = conv(BANDS + 1, width)
        self.down2 = conv(width, 2 * width)
        self.mid = conv(2 * width, 2 * width)
        self.up = conv(3 * width, width)
        self.out = nn.Conv2d(width, BANDS, 1)

    def forward(self, x):
        a = self.down1(x)
        b = self.down2(F.max_pool2d(a, 2))
        m = self.mid(b)
        m = F.interpolate(m, scale_factor=2, mode="nearest")
        return self.out(self.up(torch.cat([a, m], 1)))


class Archive:
    """Random crops out of a memory-mapped style array of scenes."""

    def __init__(self, seed=0):
        self.rng = np.random.default_rng(seed)
        self.scene = self.rng.random((BANDS, 512, 512), dtype=np.float32)

    def batch(self, n):
        out = np.empty((n, BANDS, TILE, TILE), dtype=np.float32)
        for i in range(n):
            r, c = self.rng.integers(0, 512 - TILE, 2)
            out[i] = self.scene[:, r:r + TILE, c:c + TILE]
        clouds = self.rng.random((n, 1, TILE, TILE)) < 0.3
        return torch.from_numpy(out), torch.from_numpy(clouds.astype(np.float32))


def band_errors(prediction, target, mask, window=20, errors=[]):
    """Mean absolute error a band under the clouds, smoothed over the last steps."""
    diff = (prediction.detach() - target).abs() * mask
    errors.append(diff.mean(dim=0))
    recent = torch.stack(errors[-window:])
    return recent.mean(dim=(0, 2, 3))


def spectral_angle(a, b):
    cos = F.cosine_similarity(a, b, dim=1).clamp(-0.999, 0.999)
    return torch.acos(cos).mean()


def main():
    torch.manual_seed(17)
    archive = Archive()
    net = UNet().cuda()
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, max_lr=2e-3, total_steps=STEPS)

    for step in range(STEPS):
        clear, clouds = archive.batch(8)
        clear, clouds = clear.cuda(), clouds.cuda()
        observed = clear * (1 - clouds)
        pred = net(torch.cat([observed, clouds], dim=1))
        loss = F.l1_loss(pred, clear) + 0.1 * spectral_angle(pred, clear)
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
        bands = band_errors(pred, clear, clouds)
        if step % 60 == 59:
            text = " ".join(f"{v:.3f}" for v in bands.tolist())
            print(f"{step + 1:4d} lr {sched.get_last_lr()[0]:.2e} mae/band {text}")


if __name__ == "__main__":
    main()
