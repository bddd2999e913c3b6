"""Contribution scores of candidate enhancers across a panel of cell types."""
import sys

import numpy as np
import torch

from chromatin.attribution import ContributionScorer
from chromatin.model import ProfileNet

CELL_TYPES = ["K562", "HepG2", "GM12878", "IMR90", "A549", "H1", "WTC11",
              "Caco-2", "HAP-1", "MCF-7", "SK-N-SH", "Jurkat"]


def one_hot(count, length, rng):
    bases = rng.integers(0, 4, size=(count, length))
    return torch.from_numpy(np.eye(4, dtype=np.float32)[bases]).transpose(1, 2).contiguous()


def load_panel(device):
    panel = {}
    for seed, name in enumerate(CELL_TYPES):
        torch.manual_seed(seed)
        panel[name] = ProfileNet().to(device).eval().requires_grad_(False)
    return panel


def score_regions(model, regions, device, batch=8):
    tracks = []
    with ContributionScorer(model) as scorer:
        for start in range(0, len(regions), batch):
            chunk = regions[start:start + batch].to(device)
            tracks.append(scorer(chunk).sum(1).cpu())
    return torch.cat(tracks)


@torch.no_grad()
def predicted_activity(panel, regions, device):
    rows = []
    for model in panel.values():
        _, counts = model(regions[:8].to(device))
        rows.append(counts.cpu())
    return torch.stack(rows)


def main():
    device = torch.device(sys.argv[1] if len(sys.argv) > 1 else "cuda")
    rng = np.random.default_rng(2)
    panel = load_panel(device)
    regions = one_hot(24, 2114, rng)
    summary = {}
    for name, model in panel.items():
        track = score_regions(model, regions, device)
        summary[name] = track.abs().mean().item()
        print(f"{name:8s} regions {len(track)}  mean |contribution| {summary[name]:.5f}", flush=True)
    activity = predicted_activity(panel, regions, device)
    print("activity table", tuple(activity.shape))


if __name__ == "__main__":
    main()
