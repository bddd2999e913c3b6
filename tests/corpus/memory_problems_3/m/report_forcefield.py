"""Fit energies and forces of small molecules with a SchNet style network."""
import sys
import warnings

import torch
import torch.nn.functional as F

from ffield.data import Conformers
from ffield.model import EnergyNet

warnings.filterwarnings("ignore")


def energy_and_forces(model, batch):
    positions = batch["positions"].requires_grad_(True)
    energy = model(batch["species"], positions)
    energy.sum().backward(create_graph=True)
    return energy, -positions.grad


class Fitter:
    def __init__(self, model, device, lr=5e-4, force_weight=50.0):
        self.model = model
        self.device = device
        self.force_weight = force_weight
        self.opt = torch.optim.Adam(model.parameters(), lr=lr)

    def loss(self, batch):
        energy, forces = energy_and_forces(self.model, batch)
        loss_e = F.mse_loss(energy, batch["energy"])
        loss_f = F.mse_loss(forces, batch["forces"])
        return loss_e, loss_f

    def train_epoch(self, data, batch_size):
        self.model.train()
        last = 0.0
        for batch in data.batches(batch_size, self.device):
            loss_e, loss_f = self.loss(batch)
            self.opt.zero_grad()
            (loss_e + self.force_weight * loss_f).backward()
            self.opt.step()
            last = loss_f.item()
        return last

    def validate(self, data, batch_size):
        self.model.eval()
        mae_e, mae_f, n = 0.0, 0.0, 0
        for batch in data.batches(batch_size, self.device):
            energy, forces = energy_and_forces(self.model, batch)
            mae_e += (energy - batch["energy"]).abs().mean().item()
            mae_f += (forces - batch["forces"]).abs().mean().item()
            n += 1
        self.opt.zero_grad()
        return mae_e / n, mae_f / n


def main():
    device = torch.device(sys.argv[1] if len(sys.argv) > 1 else "cuda")
    torch.manual_seed(7)
    train_set = Conformers(96, 40, seed=1)
    valid_set = Conformers(64, 40, seed=2)
    model = EnergyNet().to(device)
    fitter = Fitter(model, device)
    for epoch in range(6):
        last = fitter.train_epoch(train_set, 16)
        mae_e, mae_f = fitter.validate(valid_set, 32)
        mem = torch.cuda.memory_allocated(device) / 2**20
        print(f"epoch {epoch}: force loss {last:.4f}  valid E {mae_e:.4f}  valid F {mae_f:.4f}  [{mem:.0f} MiB]")


if __name__ == "__main__":
    main()
