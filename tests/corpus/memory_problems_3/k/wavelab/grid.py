import math
from dataclasses import dataclass

import torch


@dataclass
class Survey:
    nz: int = 160
    nx: int = 384
    dx: float = 12.5
    dt: float = 1.5e-3
    nt: int = 320
    shots: int = 16
    border: int = 24

    def source_columns(self):
        return torch.linspace(self.border, self.nx - self.border - 1, self.shots).long()

    def taper(self, device):
        """Absorbing strip along all four edges."""
        ramp = torch.ones(self.nz, self.nx)
        for i in range(self.border):
            w = math.exp(-((0.012 * (self.border - i)) ** 2))
            ramp[i, :] *= w
            ramp[-1 - i, :] *= w
            ramp[:, i] *= w
            ramp[:, -1 - i] *= w
        return ramp.to(device)


def ricker(nt, dt, f0):
    t = torch.arange(nt) * dt - 1.2 / f0
    a = (math.pi * f0 * t) ** 2
    return (1 - 2 * a) * torch.exp(-a)
