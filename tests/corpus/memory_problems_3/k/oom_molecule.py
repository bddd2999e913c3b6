"""Train a small interatomic potential, then tabulate vibrational Hessians for a set of drug-like molecules."""
import sys
import time

import numpy as np
import torch
import torch.nn.functional as F

from vibes.modes import mass_weighted, symmetrise
from vibes.potential import PairPotential

ELEMENTS = np.array([1, 6, 7, 8, 16])
FRACTION = np.array([0.48, 0.37, 0.06, 0.08, 0.01])
TARGETS = {"benzene": 12, "aspirin": 21, "caffeine": 24, "ibuprofen": 33, "morphine": 40, "atorvastatin": 76}


def conformer(n, rng):
    """Random compact cluster with a minimal separation."""
    pts = [np.zeros(3)]
    while len(pts) < n:
        anchor = pts[rng.integers(len(pts))]
        step = rng.standard_normal(3)
        cand = anchor + 1.35 * step / np.linalg.norm(step)
        if min(np.linalg.norm(cand - p) for p in pts) > 0.95:
            pts.append(cand)
    z = rng.choice(ELEMENTS, size=n, p=FRACTION)
    return torch.from_numpy(z), torch.tensor(np.stack(pts), dtype=torch.float32)


class Fit:
    def __init__(self, net, device, force_weight=25.0):
        self.net, self.device, self.fw = net, device, force_weight
        self.opt = torch.optim.AdamW(net.parameters(), lr=5e-4)

    def step(self, molecules):
        self.opt.zero_grad()
        total = 0.0
        for z, pos in molecules:
            z, pos = z.to(self.device), pos.to(self.device).requires_grad_(True)
            e = self.net(z, pos)
            force = -torch.autograd.grad(e, pos, create_graph=True)[0]
            target = -0.1 * (pos.detach() - pos.detach().mean(0))
            loss = (F.mse_loss(e / len(z), e.new_tensor(-0.8)) + self.fw * F.mse_loss(force, target)) / len(molecules)
            loss.backward()
            total += loss.item()
        self.opt.step()
        return total


def tabulate(net, device, rng):
    net.eval().requires_grad_(False)
    table = {}
    for name, n in TARGETS.items():
        z, pos = conformer(n, rng)
        t = time.time()
        h = symmetrise(mass_weighted(net, z.to(device), pos.to(device)))
        table[name] = h.cpu().numpy()
        print(f"{name:14s} {n:3d} atoms  hessian {tuple(h.shape)}  {time.time() - t:.2f}s", flush=True)
    return table


def main():
    device = sys.argv[1] if len(sys.argv) > 1 else "cuda"
    torch.manual_seed(5)
    rng = np.random.default_rng(5)
    net = PairPotential().to(device)
    fit = Fit(net, device)
    for it in range(12):
        batch = [conformer(int(rng.integers(10, 60)), rng) for _ in range(4)]
        loss = fit.step(batch)
        if it % 4 == 3:
            print(f"fit {it + 1} loss {loss:.4f}", flush=True)
    table = tabulate(net, device, rng)
    print("tabulated", len(table), "molecules,", sum(h.size for h in table.values()), "entries")


if __name__ == "__main__":
    main()
