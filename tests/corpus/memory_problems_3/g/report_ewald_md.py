"""NVT run of several replicas of an ionic liquid with learned charges."""
import csv
import io
import time

import torch

from mdkit.ewald import EwaldModel
from mdkit.integrator import Langevin

N_SYSTEMS = 8
ATOMS_PER_SYSTEM = 1024
BOX = 28.0
STEPS = 240
WRITE_EVERY = 20


class EnergyWriter:
    """Collects rows in memory and hands them out as CSV text."""

    def __init__(self, n_systems):
        self.stream = io.StringIO()
        self.writer = csv.writer(self.stream)
        self.writer.writerow(["step"] + [f"system{i}" for i in range(n_systems)])

    def __call__(self, step, energy):
        self.writer.writerow([step] + [f"{e:.6f}" for e in energy.tolist()])

    def text(self):
        return self.stream.getvalue()


def build_lattice(n_systems, n_atoms, box):
    side = round(n_atoms ** (1 / 3)) + 1
    line = torch.linspace(0, box, side + 1)[:-1]
    sites = torch.cartesian_prod(line, line, line)[:n_atoms]
    positions = sites.repeat(n_systems, 1) + 0.05 * torch.randn(n_systems * n_atoms, 3)
    system = torch.arange(n_systems).repeat_interleave(n_atoms)
    types = torch.randint(0, 16, (n_systems * n_atoms,))
    return positions, types, system


def initial_state(device):
    positions, types, system = build_lattice(N_SYSTEMS, ATOMS_PER_SYSTEM, BOX)
    velocities = 0.1 * torch.randn_like(positions)
    state = {"positions": positions, "velocities": velocities, "types": types, "system": system}
    return {k: v.to(device) for k, v in state.items()}


def main():
    torch.manual_seed(11)
    device = torch.device("cuda")
    model = EwaldModel(N_SYSTEMS, BOX).to(device).eval()
    state = initial_state(device)
    masses = torch.full((N_SYSTEMS * ATOMS_PER_SYSTEM,), 12.0, device=device)
    dynamics = Langevin(model, masses)
    state["energy"], state["forces"] = dynamics.forces(state)

    writer = EnergyWriter(N_SYSTEMS)
    start = time.time()
    for step in range(1, STEPS + 1):
        state = dynamics.step(state)
        if step % WRITE_EVERY == 0:
            writer(step, state["energy"])
    print(writer.text())
    print(f"{STEPS} steps in {time.time() - start:.1f} s")


if __name__ == "__main__":
    main()
