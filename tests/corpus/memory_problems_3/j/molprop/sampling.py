import torch


def conformers(batches, size, atoms, bins, device, elements=20, seed=41):
    rng = torch.Generator().manual_seed(seed)
    for _ in range(batches):
        kinds = torch.randint(0, elements, (size, atoms), generator=rng).to(device)
        positions = torch.randn(size, atoms, 3, generator=rng).to(device) * 2.5
        distance = torch.cdist(positions, positions)
        contact = distance.div(0.8).long().clamp(max=bins - 1)
        energy = -distance.add(1.0).reciprocal().sum((1, 2))
        yield kinds, positions, energy, contact
