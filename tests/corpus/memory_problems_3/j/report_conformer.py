"""Learn conformer energies; the pair distance task joins the objective in the last epochs."""
import sys
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from molprop import Board, ConformerNet, conformers


@dataclass
class Plan:
    epochs: int = 6
    batches: int = 12
    size: int = 64
    atoms: int = 48
    bins: int = 16
    contact_from: int = 5
    contact_weight: float = 0.25
    lr: float = 3e-4


class Learner:
    def __init__(self, plan, device):
        self.plan, self.device = plan, device
        self.net = ConformerNet(atoms=plan.atoms, bins=plan.bins).to(device)
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=plan.lr)
        self.board = Board("energy", "contact")

    def losses(self, batch):
        kinds, positions, energy, contact = batch
        predicted, bins = self.net(kinds, positions)
        contact_loss = F.cross_entropy(bins.flatten(0, 2), contact.flatten())
        return F.l1_loss(predicted, energy), contact_loss

    def step(self, batch, epoch):
        energy_loss, contact_loss = self.losses(batch)
        objective = energy_loss
        if epoch >= self.plan.contact_from:
            objective = objective + self.plan.contact_weight * contact_loss
        self.optimizer.zero_grad(set_to_none=True)
        objective.backward()
        torch.nn.utils.clip_grad_norm_(self.net.parameters(), 5.0)
        self.optimizer.step()
        self.board.log(energy=energy_loss, contact=contact_loss)

    @torch.no_grad()
    def validate(self):
        errors = [torch.stack(self.losses(b)) for b in self.data(2, seed=99)]
        return torch.stack(errors).mean(0).tolist()

    def data(self, batches, seed):
        return conformers(batches, self.plan.size, self.plan.atoms, self.plan.bins, self.device, seed=seed)

    def fit(self):
        for epoch in range(self.plan.epochs):
            for batch in self.data(self.plan.batches, seed=epoch):
                self.step(batch, epoch)
            energy, contact = self.validate()
            print(f"epoch {epoch}: {self.board.line()}  validation {energy:.4f} / {contact:.4f}")


def main():
    torch.manual_seed(13)
    learner = Learner(Plan(), sys.argv[1] if len(sys.argv) > 1 else "cuda")
    print(f"{sum(p.numel() for p in learner.net.parameters())} parameters")
    learner.fit()


if __name__ == "__main__":
    main()
