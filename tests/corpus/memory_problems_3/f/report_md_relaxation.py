"""Relax a batch of candidate crystals with a conservative interatomic potential.

Every structure is relaxed with FIRE until the step budget is used up, then the
final energy and geometry go into the ranking table.
"""
import argparse
import logging
import random

import torch
import torch.nn as nn

log = logging.getLogger("relax")


class RadialBasis(nn.Module):
    def __init__(self, n_rbf=32, cutoff=6.0):
        super().__init__()
        self.register_buffer("centers", torch.linspace(0.0, cutoff, n_rbf))
        self.gamma = 10.0 / cutoff

    def forward(self, dist):
        return torch.exp(-self.gamma * (dist.unsqueeze(-1) - self.centers) ** 2)


class Interaction(nn.Module):
    def __init__(self, width, n_rbf):
        super().__init__()
        self.filter = nn.Sequential(nn.Linear(n_rbf, width), nn.SiLU(), nn.Linear(width, width))
        self.update = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width))

    def forward(self, h, rbf, mask):
        w = self.filter(rbf) * mask
        message = (w * h.unsqueeze(0)).sum(dim=1)
        return h + self.update(message)


class Potential(nn.Module):
    def __init__(self, n_species=90, width=64, n_layers=3, n_rbf=32):
        super().__init__()
        self.embed = nn.Embedding(n_species, width)
        self.rbf = RadialBasis(n_rbf)
        self.layers = nn.ModuleList(Interaction(width, n_rbf) for _ in range(n_layers))
        self.readout = nn.Sequential(nn.Linear(width, width // 2), nn.SiLU(), nn.Linear(width // 2, 1))

    def forward(self, species, pos, strain):
        pos = pos + pos @ strain
        delta = pos.unsqueeze(0) - pos.unsqueeze(1)
        dist = (delta.pow(2).sum(-1) + 1e-9).sqrt()
        mask = (1.0 - torch.eye(len(pos), device=pos.device)).unsqueeze(-1)
        rbf = self.rbf(dist)
        h = self.embed(species)
        for layer in self.layers:
            h = layer(h, rbf, mask)
        return self.readout(h).sum()


class PredictUnit:
    """Energy, forces and (on request) the virial stress of one structure."""

    def __init__(self, model):
        self.model = model.eval()

    def predict(self, species, pos, with_stress=False):
        pos = pos.detach().requires_grad_(True)
        strain = torch.zeros(3, 3, device=pos.device, requires_grad=True)
        energy = self.model(species, pos, strain)
        forces = -torch.autograd.grad(energy, pos, retain_graph=True)[0]
        out = {"energy": energy, "forces": forces.detach()}
        if with_stress:
            out["stress"] = torch.autograd.grad(energy, strain, retain_graph=True)[0]
        return out


class Fire:
    def __init__(self, dt=0.1):
        self.dt, self.velocity = dt, None

    def step(self, pos, forces):
        if self.velocity is None:
            self.velocity = torch.zeros_like(pos)
        self.velocity = 0.9 * self.velocity + self.dt * forces
        return pos + self.dt * self.velocity


def relax(unit, species, pos, n_steps):
    fire = Fire()
    for _ in range(n_steps):
        out = unit.predict(species, pos)
        pos = fire.step(pos, out["forces"])
    final = unit.predict(species, pos, with_stress=True)
    return final, pos


def candidates(n, seed):
    rng = random.Random(seed)
    for i in range(n):
        n_atoms = rng.randint(36, 56)
        species = torch.randint(1, 90, (n_atoms,))
        yield f"cand-{i:04d}", species, torch.rand(n_atoms, 3) * 8.0


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--structures", type=int, default=90)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--seed", type=int, default=11)
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(name)s %(message)s")

    torch.manual_seed(args.seed)
    unit = PredictUnit(Potential().cuda())
    ranking = []
    for name, species, pos in candidates(args.structures, args.seed):
        final, relaxed = relax(unit, species.cuda(), pos.cuda(), args.steps)
        ranking.append({
            "name": name,
            "energy": final["energy"],
            "n_atoms": len(species),
            "positions": relaxed.cpu(),
        })
        if len(ranking) % 30 == 0:
            log.info("%d structures relaxed", len(ranking))

    ranking.sort(key=lambda row: float(row["energy"]) / row["n_atoms"])
    for row in ranking[:5]:
        log.info("%s %.4f", row["name"], float(row["energy"]))


if __name__ == "__main__":
    main()
