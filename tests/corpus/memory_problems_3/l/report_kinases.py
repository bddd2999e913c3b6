"""Fit kinase inhibitor affinities: compound fingerprints against binding-pocket descriptors."""
import sys

import numpy as np
import torch
from torch import nn
import torch.nn.functional as F

N_COMPOUNDS = 6000
N_POCKETS = 480
FINGERPRINT = 1024
POCKET_FEATURES = 200
LATENT = 144
ASSAYS = ("IC50", "Ki", "Kd", "EC50")


class Tower(nn.Module):
    def __init__(self, n_in, n_out):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(n_in, 256), nn.LayerNorm(256), nn.SiLU(),
                                 nn.Linear(256, n_out))

    def forward(self, x):
        return self.net(x)


class AffinityHead(nn.Module):
    """Bilinear form per assay between compound latent and pocket latent."""

    def __init__(self, latent, n_assays):
        super().__init__()
        self.core = nn.Parameter(torch.randn(latent, latent, n_assays) / latent)
        self.compound_bias = nn.Linear(latent, n_assays)
        self.pocket_bias = nn.Linear(latent, n_assays, bias=False)

    def forward(self, compound, pocket):
        pair = torch.einsum("ni,nj,ijk->nk", compound, pocket, self.core)
        return pair + self.compound_bias(compound) + self.pocket_bias(pocket)


class AffinityModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.compound = Tower(FINGERPRINT, LATENT)
        self.pocket = Tower(POCKET_FEATURES, LATENT)
        self.head = AffinityHead(LATENT, len(ASSAYS))

    def forward(self, fingerprints, descriptors, compound_index, pocket_index):
        c = self.compound(fingerprints)[compound_index]
        p = self.pocket(descriptors)[pocket_index]
        return self.head(c, p)


class AssayTable:
    def __init__(self, seed):
        rng = np.random.default_rng(seed)
        self.rng = rng
        self.fingerprints = (rng.random((N_COMPOUNDS, FINGERPRINT)) < 0.06).astype(np.float32)
        self.descriptors = rng.standard_normal((N_POCKETS, POCKET_FEATURES)).astype(np.float32)
        self.n_rows = 16384 * 10
        self.compound = rng.integers(0, N_COMPOUNDS, self.n_rows)
        self.pocket = rng.integers(0, N_POCKETS, self.n_rows)
        self.assay = rng.integers(0, len(ASSAYS), self.n_rows)
        self.value = rng.normal(6.5, 1.2, self.n_rows).astype(np.float32)

    def batches(self, size):
        order = self.rng.permutation(self.n_rows)
        for i in range(0, self.n_rows, size):
            rows = order[i:i + size]
            yield (torch.from_numpy(self.compound[rows]), torch.from_numpy(self.pocket[rows]),
                   torch.from_numpy(self.assay[rows]), torch.from_numpy(self.value[rows]))


def censored_loss(pred, assay, target):
    chosen = pred.gather(1, assay[:, None]).squeeze(1)
    return F.smooth_l1_loss(chosen, target)


def fit(table, device, epochs=2, batch=16384):
    model = AffinityModel().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    fingerprints = torch.from_numpy(table.fingerprints).to(device)
    descriptors = torch.from_numpy(table.descriptors).to(device)
    for epoch in range(epochs):
        rows = 0
        for compound, pocket, assay, value in table.batches(batch):
            pred = model(fingerprints, descriptors, compound.to(device), pocket.to(device))
            loss = censored_loss(pred, assay.to(device), value.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            rows += compound.numel()
        print(f"epoch {epoch}: {rows} measurements, {len(ASSAYS)} assay types")
    return model


@torch.no_grad()
def rank_pockets(model, table, device, compound_id):
    model.eval()
    fingerprints = torch.from_numpy(table.fingerprints[compound_id:compound_id + 1]).to(device)
    descriptors = torch.from_numpy(table.descriptors).to(device)
    compound_index = torch.zeros(N_POCKETS, dtype=torch.long, device=device)
    pocket_index = torch.arange(N_POCKETS, device=device)
    scores = model(fingerprints, descriptors, compound_index, pocket_index)
    return scores.topk(5, dim=0).indices


if __name__ == "__main__":
    device = torch.device(sys.argv[1])
    torch.manual_seed(3)
    table = AssayTable(seed=3)
    model = fit(table, device)
    best = rank_pockets(model, table, device, compound_id=17)
    print("ranked pockets for compound 17:", tuple(best.shape))
