"""Searches for molecules with a genetic algorithm whose fitness is an ensemble of message passing networks."""
import random
import resource

import torch
from torch import nn

from molecules.features import ATOM_FEATURES, BOND_FEATURES, ELEMENTS, mol2graph


class MessagePassing(nn.Module):
    def __init__(self, hidden=300, depth=3):
        super().__init__()
        self.depth = depth
        self.atom_in = nn.Linear(ATOM_FEATURES, hidden)
        self.bond_in = nn.Linear(BOND_FEATURES, hidden)
        self.update = nn.Linear(hidden, hidden)
        self.readout = nn.Sequential(nn.Linear(hidden + 1, hidden), nn.ReLU(), nn.Linear(hidden, 1))

    def forward(self, graph):
        atoms = torch.relu(self.atom_in(graph.f_atoms))
        bonds = torch.relu(self.bond_in(graph.f_bonds))
        for _ in range(self.depth):
            messages = torch.zeros_like(atoms).index_add_(0, graph.bonds[1], atoms[graph.bonds[0]] + bonds)
            atoms = torch.relu(atoms + self.update(messages))
        pooled = torch.zeros(graph.size, atoms.shape[1], device=atoms.device).index_add_(0, graph.owner, atoms)
        return self.readout(torch.cat([pooled, graph.spread[:, None]], dim=1)).squeeze(1)


class Ensemble:
    def __init__(self, members=4, batch_size=50):
        self.models = [MessagePassing().cuda().eval() for _ in range(members)]
        self.batch_size = batch_size

    @torch.no_grad()
    def predict(self, smiles):
        scores = []
        for start in range(0, len(smiles), self.batch_size):
            batch = mol2graph(smiles[start : start + self.batch_size]).to("cuda")
            scores.append(torch.stack([model(batch) for model in self.models]).mean(0).cpu())
        return torch.cat(scores).tolist()


class Population:
    def __init__(self, size, seed=0):
        self.random = random.Random(seed)
        self.size = size
        self.members = [self.chain(self.random.randint(30, 70)) for _ in range(size)]

    def chain(self, length):
        return "".join(self.random.choice(ELEMENTS) for _ in range(length))

    def mutate(self, smiles):
        position = self.random.randrange(1, len(smiles))
        return smiles[:position] + self.random.choice(ELEMENTS) + smiles[position + 1 :]

    def cross(self, first, second):
        return first[: len(first) // 2] + second[len(second) // 2 :]

    def offspring(self):
        children = []
        while len(children) < self.size:
            first, second = self.random.sample(self.members, 2)
            child = self.mutate(self.cross(first, second))
            if 20 <= len(child) <= 110:
                children.append(child)
        return children

    def select(self, scored):
        self.members = [smiles for smiles, _ in sorted(scored.items(), key=lambda item: -item[1])[: self.size]]


def resident_mib():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def main(generations=60, size=150):
    torch.manual_seed(0)
    ensemble, population = Ensemble(), Population(size)
    scored = dict(zip(population.members, ensemble.predict(population.members)))
    for generation in range(1, generations + 1):
        children = population.offspring()
        scored = {smiles: scored[smiles] for smiles in population.members if smiles in scored}
        scored.update(zip(children, ensemble.predict(children)))
        population.select(scored)
        if generation % 5 == 0:
            print(f"generation {generation}: best {max(scored.values()):.4f}, host memory {resident_mib()} MiB, "
                  f"device memory {torch.cuda.memory_allocated() / 2**20:.0f} MiB")


if __name__ == "__main__":
    main()
