"""Turns SMILES strings into graphs with features of atoms and bonds, on the CPU."""
import random
from typing import Dict, List

import torch

ELEMENTS = ["C", "N", "O", "S", "F", "P", "Cl", "Br"]
ATOM_FEATURES = 133
BOND_FEATURES = 147


class MolGraph:
    def __init__(self, smiles: str):
        atoms = [letter for letter in smiles if letter.isalpha()]
        seeded = random.Random(smiles)
        self.n_atoms = len(atoms)
        self.f_atoms = torch.rand(self.n_atoms, ATOM_FEATURES)
        self.f_atoms[torch.arange(self.n_atoms), torch.tensor([ord(atom) % 8 for atom in atoms])] = 1.0
        source, target = [], []
        for atom in range(1, self.n_atoms):
            other = seeded.randrange(max(0, atom - 3), atom)
            source += [atom, other]
            target += [other, atom]
        self.bonds = torch.tensor([source, target])
        self.f_bonds = torch.cat([self.f_atoms[self.bonds[0]], torch.rand(len(source), BOND_FEATURES - ATOM_FEATURES)], dim=1)
        self.distances = torch.cdist(self.f_atoms, self.f_atoms)


class BatchMolGraph:
    def __init__(self, graphs: List[MolGraph]):
        counts = torch.tensor([graph.n_atoms for graph in graphs])
        offsets = torch.cumsum(counts, 0) - counts
        self.f_atoms = torch.cat([graph.f_atoms for graph in graphs])
        self.f_bonds = torch.cat([graph.f_bonds for graph in graphs])
        self.bonds = torch.cat([graph.bonds + offset for graph, offset in zip(graphs, offsets)], dim=1)
        self.owner = torch.repeat_interleave(torch.arange(len(graphs)), counts)
        self.spread = torch.stack([graph.distances.mean() for graph in graphs])
        self.size = len(graphs)

    def to(self, device):
        for name in ("f_atoms", "f_bonds", "bonds", "owner", "spread"):
            setattr(self, name, getattr(self, name).to(device))
        return self


SMILES_TO_GRAPH: Dict[str, MolGraph] = {}


def mol2graph(smiles_batch: List[str], cache: bool = True) -> BatchMolGraph:
    graphs = []
    for smiles in smiles_batch:
        if smiles in SMILES_TO_GRAPH:
            graph = SMILES_TO_GRAPH[smiles]
        else:
            graph = MolGraph(smiles)
            if cache:
                SMILES_TO_GRAPH[smiles] = graph
        graphs.append(graph)
    return BatchMolGraph(graphs)
