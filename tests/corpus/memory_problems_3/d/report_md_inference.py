"""Molecular dynamics of a liquid with a neural network potential: velocity Verlet, thermostat, virial pressure."""
import argparse

import torch
from torch import nn


class Descriptor(nn.Module):
    def __init__(self, num_neighbours, width, basis=16, cutoff=6.0):
        super().__init__()
        self.cutoff = cutoff
        self.register_buffer("centres", torch.linspace(0.5, cutoff, basis))
        self.filter = nn.Sequential(nn.Linear(basis, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh())
        self.norm = num_neighbours

    def forward(self, vectors):
        distance = (vectors.square().sum(dim=-1) + 1e-6).sqrt()
        radial = torch.exp(-(distance.unsqueeze(-1) - self.centres).square())
        envelope = 0.5 * (torch.cos(distance * torch.pi / self.cutoff) + 1.0)
        return (self.filter(radial) * envelope.unsqueeze(-1)).sum(dim=1) / self.norm


class FittingNet(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(width, 128), nn.Tanh(), nn.Linear(128, 128), nn.Tanh(), nn.Linear(128, 1))

    def forward(self, features):
        return self.net(features).squeeze(-1)


class EnergyModel(nn.Module):
    def __init__(self, num_neighbours, width=64):
        super().__init__()
        self.descriptor = Descriptor(num_neighbours, width)
        self.fitting = FittingNet(width)

    def forward(self, positions, neighbours):
        extended = positions.detach().requires_grad_(True)
        vectors = extended[neighbours] - extended.unsqueeze(1)
        atom_energy = self.fitting(self.descriptor(vectors))
        return fit_output(atom_energy, extended)


def fit_output(atom_energy, extended):
    """Energy, forces and the virial, one component of the positions after the other."""
    energy = atom_energy.sum()
    gradient = torch.autograd.grad([energy], [extended], create_graph=True, retain_graph=True)[0]
    rows = []
    for component in range(3):
        weighted = (atom_energy * extended.detach()[:, component]).sum()
        row = torch.autograd.grad([weighted], [extended], create_graph=True, retain_graph=True)[0]
        rows.append(row.sum(dim=0))
    return {"energy": energy, "force": -gradient, "virial": torch.stack(rows)}


class System:
    def __init__(self, atoms, density, temperature, device):
        self.box = (atoms / density) ** (1 / 3)
        self.positions = torch.rand(atoms, 3, device=device) * self.box
        self.velocities = torch.randn(atoms, 3, device=device) * temperature ** 0.5
        self.forces = torch.zeros(atoms, 3, device=device)

    def kinetic(self):
        return 0.5 * self.velocities.square().sum()


class NeighbourList:
    def __init__(self, num_neighbours, every):
        self.num_neighbours, self.every, self.table = num_neighbours, every, None

    def get(self, step, positions):
        if step % self.every == 0:
            count = len(positions)
            offsets = torch.arange(1, self.num_neighbours + 1, device=positions.device)
            self.table = (torch.arange(count, device=positions.device).unsqueeze(1) + offsets) % count
        return self.table


class VelocityVerlet:
    def __init__(self, calculator, neighbour_list, dt, temperature):
        self.calculator, self.neighbour_list, self.dt, self.temperature = calculator, neighbour_list, dt, temperature

    def step(self, system, index):
        system.velocities += 0.5 * self.dt * system.forces
        system.positions = (system.positions + self.dt * system.velocities) % system.box
        result = self.calculator(system.positions, self.neighbour_list.get(index, system.positions))
        system.forces = result["force"].detach()
        system.velocities += 0.5 * self.dt * system.forces
        system.velocities *= 0.999
        return {"potential": result["energy"].item(), "pressure": result["virial"].detach().trace().item()}


def drift(history):
    """Slope of the potential energy over the run, by gradient descent on a line."""
    values = torch.tensor(history, device="cuda")
    times = torch.linspace(-1, 1, len(history), device="cuda")
    line = torch.zeros(2, device="cuda", requires_grad=True)
    for _ in range(20):
        line.grad = None
        (line[0] + line[1] * times - values).square().mean().backward()
        with torch.no_grad():
            line -= 0.5 * line.grad
    return line[1].item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--atoms", type=int, default=4096)
    parser.add_argument("--steps", type=int, default=240)
    args = parser.parse_args()
    model = EnergyModel(num_neighbours=48).cuda().eval()
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    system = System(args.atoms, density=0.1, temperature=0.3, device="cuda")
    integrator = VelocityVerlet(model, NeighbourList(48, every=10), dt=0.002, temperature=0.3)
    history = []
    for index in range(args.steps):
        report = integrator.step(system, index)
        history.append(report["potential"])
        if index % 40 == 0:
            print(f"step {index} potential {report['potential']:.3f} kinetic {system.kinetic().item():.3f} "
                  f"peak {torch.cuda.max_memory_allocated() / 2**20:.0f} MiB")
    print(f"drift {drift(history):.5f}")


if __name__ == "__main__":
    main()
