"""Acoustic full-waveform inversion of a marine profile by backpropagation through the solver."""
import sys

import numpy as np
import torch
import torch.nn.functional as F

NZ, NX = 256, 448
DX, DT, STEPS = 10.0, 1.0e-3, 700
SHOTS, PEAK_HZ, WATER_ROWS = 12, 9.0, 20


def ricker(n, dt, peak):
    t = np.arange(n) * dt - 1.2 / peak
    a = (np.pi * peak * t) ** 2
    return (1 - 2 * a) * np.exp(-a)


def sponge(nz, nx, width=30, strength=0.0053):
    """Cerjan damping towards the sides and the bottom, free surface on top."""
    z, x = np.ones(nz), np.ones(nx)
    ramp = np.exp(-(strength * np.arange(width, 0, -1)) ** 2)
    x[:width], x[-width:] = ramp, ramp[::-1]
    z[-width:] = ramp[::-1]
    return z[:, None] * x[None, :]


class Survey:
    def __init__(self, device):
        wavelet = ricker(STEPS, DT, PEAK_HZ).astype(np.float32)
        self.wavelet = torch.from_numpy(wavelet).to(device)
        self.taper = torch.from_numpy(sponge(NZ, NX)).to(device)
        self.source_x = torch.linspace(40, NX - 40, SHOTS).long().to(device)
        self.receiver_x = torch.arange(32, NX - 32, 4, device=device)
        self.mask = torch.zeros(SHOTS, NZ, NX, device=device)
        self.mask[torch.arange(SHOTS, device=device), 4, self.source_x] = 1.0

    def model(self, velocity):
        """Shot gathers (shots, time, receivers) for a velocity field in m/s."""
        courant = (velocity * DT / DX) ** 2
        previous = torch.zeros(SHOTS, NZ, NX, device=velocity.device)
        current = torch.zeros_like(previous)
        gathers = []
        for n in range(STEPS):
            padded = F.pad(current, (1, 1, 1, 1))
            laplacian = (padded[:, :-2, 1:-1] + padded[:, 2:, 1:-1] + padded[:, 1:-1, :-2]
                         + padded[:, 1:-1, 2:] - 4 * current)
            following = 2 * current - self.taper * previous + courant * laplacian
            following = self.taper * following + self.wavelet[n] * self.mask
            previous, current = current, following
            gathers.append(current[:, 6, self.receiver_x])
        return torch.stack(gathers, dim=1)


def starting_model(device):
    depth = torch.linspace(0, 1, NZ, device=device)[:, None]
    velocity = (1600 + 1900 * depth).expand(NZ, NX).clone()
    velocity[:WATER_ROWS] = 1500.0
    return velocity


def true_model(device):
    velocity = starting_model(device)
    velocity[90:120, 150:300] += 350.0
    velocity[170:200, 60:220] -= 250.0
    return velocity


class Inversion:
    def __init__(self, survey, observed, device):
        self.survey = survey
        self.observed = observed
        self.velocity = starting_model(device).requires_grad_(True)
        self.optim = torch.optim.Adam([self.velocity], lr=12.0)

    def misfit(self, predicted):
        weight = torch.linspace(0.5, 1.5, STEPS, device=predicted.device)[:, None]
        return 0.5 * (weight * (predicted - self.observed)).square().mean()

    def iterate(self, n):
        for it in range(n):
            self.optim.zero_grad(set_to_none=True)
            loss = self.misfit(self.survey.model(self.velocity))
            loss.backward()
            self.velocity.grad[:WATER_ROWS] = 0
            self.optim.step()
            with torch.no_grad():
                self.velocity.clamp_(1450, 4200)
            print(f"iteration {it} misfit {loss.item():.4e}")


def main(device):
    torch.manual_seed(2)
    survey = Survey(device)
    with torch.no_grad():
        observed = survey.model(true_model(device))
    print(f"observed gathers {tuple(observed.shape)}")
    inversion = Inversion(survey, observed, device)
    inversion.iterate(3)
    print("done")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "cuda")
