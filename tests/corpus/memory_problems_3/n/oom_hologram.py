import sys
import time

import torch

from holo.lbfgs import LBFGS
from holo.propagation import AngularSpectrum, HologramLoss

HEIGHT, WIDTH = 1440, 2560
PITCH = 3.74e-6
WAVELENGTHS = (638e-9, 520e-9, 450e-9)


def scenes(count, seed):
    generator = torch.Generator().manual_seed(seed)
    for index in range(count):
        coarse = torch.rand(1, 3, HEIGHT // 40, WIDTH // 40, generator=generator)
        image = torch.nn.functional.interpolate(coarse, size=(HEIGHT, WIDTH), mode="bilinear")
        yield f"scene{index:02d}", image[0]


def initial_phase(seed, device):
    generator = torch.Generator().manual_seed(seed)
    coarse = (torch.rand(3, 1, HEIGHT // 8, WIDTH // 8, generator=generator) - 0.5) * 0.5
    phase = torch.nn.functional.interpolate(coarse, size=(HEIGHT, WIDTH), mode="nearest").squeeze(1)
    return phase.to(device).requires_grad_(True)


def quantise(phase, levels=256):
    wrapped = torch.remainder(phase.detach(), 2 * torch.pi)
    return (wrapped * (levels / (2 * torch.pi))).to(torch.uint8)


def psnr(loss):
    return -10 * torch.log10(loss.clamp(min=1e-8))


def optimise(name, objective, iterations, device):
    phase = initial_phase(1, device)
    minimiser = LBFGS(phase, lr=0.8)
    started = time.time()
    for iteration in range(iterations):
        loss = minimiser.step(lambda: objective(phase))
        if (iteration + 1) % 10 == 0:
            print(f"{name} iteration {iteration + 1:3d}: psnr {psnr(loss).item():.2f} dB "
                  f"({time.time() - started:.1f}s)", flush=True)
    return quantise(phase).cpu()


def main():
    device = torch.device(sys.argv[1] if len(sys.argv) > 1 else "cuda")
    torch.manual_seed(1)
    propagation = AngularSpectrum(HEIGHT, WIDTH, PITCH, WAVELENGTHS, distance=0.12).to(device)
    masks = {}
    for name, target in scenes(1, seed=8):
        objective = HologramLoss(propagation, target).to(device)
        masks[name] = optimise(name, objective, iterations=80, device=device)
        print(f"{name}: mask {tuple(masks[name].shape)} {masks[name].dtype}", flush=True)
    print(f"{len(masks)} hologram(s) ready for the modulator")


if __name__ == "__main__":
    main()
