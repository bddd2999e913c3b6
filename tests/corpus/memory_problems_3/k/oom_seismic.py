"""Multi-scale full waveform inversion of a synthetic marine line."""
import sys
import time

import torch
from torch import nn

from wavelab import Propagator, Survey, pick_step, ricker
from wavelab.search import descent_direction

DEVICE = torch.device(sys.argv[1] if len(sys.argv) > 1 else "cuda")
BANDS = [4.0, 7.0]
WARM_ITERS = 2
REFINE_ITERS = 3
STEP_LENGTHS = [10.0, 20.0, 40.0, 60.0, 90.0]


def true_model(s):
    z = torch.linspace(0, 1, s.nz)[:, None].expand(s.nz, s.nx)
    v = 1500 + 1900 * z
    v = v.clone()
    v[70:95, 120:250] += 350
    v[110:, :180] += 200
    return v


def start_model(s):
    z = torch.linspace(0, 1, s.nz)[:, None].expand(s.nz, s.nx)
    return (1500 + 1700 * z).clone()


class Inversion:
    def __init__(self, survey, device):
        self.survey = survey
        self.device = device
        self.prop = Propagator(survey, device)
        self.velocity = nn.Parameter(start_model(survey).to(device))
        self.opt = torch.optim.Adam([self.velocity], lr=15.0)
        self.history = []

    @torch.no_grad()
    def record(self, f0):
        wavelet = ricker(self.survey.nt, self.survey.dt, f0)
        return self.prop.shoot(true_model(self.survey).to(self.device), wavelet), wavelet

    def set_band(self, f0):
        self.data, self.wavelet = self.record(f0)
        self.scale = self.data.pow(2).mean().clamp_min(1e-12)

    def objective(self, velocity):
        synth = self.prop.shoot(velocity, self.wavelet)
        return (synth - self.data).pow(2).mean() / self.scale

    def warm_iteration(self):
        self.opt.zero_grad()
        loss = self.objective(self.velocity)
        loss.backward()
        self.opt.step()
        return loss.item()

    def refine_iteration(self):
        self.opt.zero_grad()
        loss = self.objective(self.velocity)
        loss.backward()
        direction = descent_direction(self.velocity.grad)
        step, values = pick_step(self.objective, self.velocity, direction, STEP_LENGTHS)
        with torch.no_grad():
            self.velocity -= step * direction
            self.velocity.clamp_(1400.0, 4500.0)
        return loss.item(), step


def main():
    torch.manual_seed(11)
    survey = Survey()
    inv = Inversion(survey, DEVICE)
    t0 = time.time()
    inv.set_band(BANDS[0])
    for i in range(WARM_ITERS):
        loss = inv.warm_iteration()
        inv.history.append(loss)
        print(f"[{BANDS[0]:.0f} Hz] iter {i} misfit {loss:.4f} ({time.time() - t0:.1f}s)", flush=True)
    inv.set_band(BANDS[1])
    for i in range(REFINE_ITERS):
        loss, step = inv.refine_iteration()
        inv.history.append(loss)
        print(f"[{BANDS[1]:.0f} Hz] iter {i} misfit {loss:.4f} step {step} ({time.time() - t0:.1f}s)", flush=True)
    print("done, model mean", inv.velocity.mean().item())


if __name__ == "__main__":
    main()
