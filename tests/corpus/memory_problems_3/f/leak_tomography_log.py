"""Iterative CT reconstruction with a learned regulariser (unrolled, trained slice by slice)."""
import io
import logging
import logging.handlers
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

SIZE = 128
ANGLES = 30
SLICES = 240

log = logging.getLogger("tomo")


def setup_logging(stream):
    """Warnings go to the report at once, together with the details that led to them."""
    details = logging.StreamHandler(stream)
    details.setFormatter(logging.Formatter("%(levelname).1s %(message)s"))
    memory = logging.handlers.MemoryHandler(capacity=100_000, flushLevel=logging.WARNING, target=details)
    log.addHandler(memory)
    console = logging.StreamHandler()
    console.setLevel(logging.INFO)
    log.addHandler(console)
    log.setLevel(logging.DEBUG)
    log.propagate = False


class Projector(nn.Module):
    """Parallel beam projection by rotating the slice."""

    def __init__(self, size, angles):
        super().__init__()
        theta = torch.linspace(0, math.pi, angles + 1)[:-1]
        rot = torch.zeros(angles, 2, 3)
        rot[:, 0, 0], rot[:, 0, 1] = theta.cos(), -theta.sin()
        rot[:, 1, 0], rot[:, 1, 1] = theta.sin(), theta.cos()
        self.register_buffer("grid", F.affine_grid(rot, (angles, 1, size, size), align_corners=False))
        self.angles = angles

    def forward(self, image):
        rotated = F.grid_sample(image.expand(self.angles, -1, -1, -1), self.grid, align_corners=False)
        return rotated.sum(2).squeeze(1)

    def adjoint(self, sinogram, size):
        return F.interpolate(sinogram[None, None], (size, size), mode="bilinear") / self.angles


class Regulariser(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(1, width, 3, padding=1), nn.PReLU(),
            nn.Conv2d(width, width, 3, padding=1), nn.PReLU(), nn.Conv2d(width, 1, 3, padding=1))
        self.step_size = nn.Parameter(torch.tensor(0.1))

    def forward(self, x):
        return self.net(x)


def reconstruct(projector, reg, sinogram, sweeps=3):
    x = projector.adjoint(sinogram, SIZE)
    for k in range(sweeps):
        residual = projector(x) - sinogram
        x = x - reg.step_size * projector.adjoint(residual, SIZE) + reg(x)
    log.debug("sinogram residual %s", residual.detach())
    log.debug("slice after %d sweeps: %s", sweeps, x.detach())
    return x


def phantoms(n, seed):
    g = torch.Generator().manual_seed(seed)
    for _ in range(n):
        blobs = torch.rand(1, 1, 10, 10, generator=g)
        yield F.interpolate(blobs, (SIZE, SIZE), mode="bicubic").clamp(0, 1)


def main():
    report = io.StringIO()
    setup_logging(report)
    torch.manual_seed(0)
    projector, reg = Projector(SIZE, ANGLES).cuda(), Regulariser().cuda()
    optimizer = torch.optim.Adam(reg.parameters(), lr=1e-4)
    for number, truth in enumerate(phantoms(SLICES, seed=8), 1):
        truth = truth.cuda()
        with torch.no_grad():
            sinogram = projector(truth)
        loss = F.mse_loss(reconstruct(projector, reg, sinogram), truth)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if number % 60 == 0:
            log.info("slice %d loss %.5f", number, loss.item())


if __name__ == "__main__":
    main()
