import torch


class Conformers:
    """Synthetic conformers of small molecules, padded to a fixed number of atoms."""

    def __init__(self, n_molecules, n_atoms, seed):
        gen = torch.Generator().manual_seed(seed)
        self.species = torch.randint(0, 8, (n_molecules, n_atoms), generator=gen)
        self.positions = torch.randn(n_molecules, n_atoms, 3, generator=gen) * 2.0
        self.energies = torch.randn(n_molecules, generator=gen)
        self.forces = torch.randn(n_molecules, n_atoms, 3, generator=gen) * 0.1

    def batches(self, size, device):
        for lo in range(0, len(self.energies), size):
            sl = slice(lo, lo + size)
            yield {
                "species": self.species[sl].to(device),
                "positions": self.positions[sl].to(device),
                "energy": self.energies[sl].to(device),
                "forces": self.forces[sl].to(device),
            }
