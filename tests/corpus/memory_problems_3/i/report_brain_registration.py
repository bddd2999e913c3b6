"""Atlas registration of brain MRI: evaluates a displacement network on labelled subject pairs."""
import sys

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

LABELS = 46
VOLUME = (96, 112, 96)
PAIRS = 60


class DisplacementNet(nn.Module):
    def __init__(self, width=12):
        super().__init__()
        self.encode = nn.Conv3d(2, width, 4, stride=4)
        self.body = nn.Sequential(
            nn.Conv3d(width, width, 3, padding=1), nn.LeakyReLU(0.2),
            nn.Conv3d(width, width, 3, padding=1), nn.LeakyReLU(0.2))
        self.flow = nn.Conv3d(width, 3, 3, padding=1)

    def forward(self, moving, fixed):
        coarse = self.body(self.encode(torch.cat([moving, fixed], dim=1)))
        return F.interpolate(self.flow(coarse), size=moving.shape[2:], mode="nearest")


class SpatialTransformer(nn.Module):
    def __init__(self, size):
        super().__init__()
        axes = [torch.linspace(-1, 1, length) for length in size]
        grid = torch.stack(torch.meshgrid(*axes, indexing="ij")[::-1], dim=-1)
        self.register_buffer("grid", grid[None])

    def forward(self, volume, flow, mode="bilinear"):
        where = self.grid + flow.permute(0, 2, 3, 4, 1)
        return F.grid_sample(volume, where, mode=mode, align_corners=True)


class SubjectPairs:
    def __init__(self, count, device, seed=9):
        self.count = count
        self.device = device
        rng = np.random.default_rng(seed)
        blocks = rng.integers(0, LABELS, size=[length // 16 for length in VOLUME])
        labels = blocks.repeat(16, 0).repeat(16, 1).repeat(16, 2)
        self.atlas_labels = torch.from_numpy(labels)[None, None]

    def __iter__(self):
        for index in range(self.count):
            subject = torch.roll(self.atlas_labels, shifts=index % 7, dims=2)
            scan = subject.float().div(LABELS)
            atlas = self.atlas_labels.float().div(LABELS)
            yield [item.to(self.device) for item in (scan, atlas, subject, self.atlas_labels)]


def dice_per_structure(predicted, reference, n_classes=LABELS):
    """Dice overlap of two label volumes, one value for each structure."""
    predicted = F.one_hot(predicted.squeeze(1), n_classes)
    predicted = predicted.permute(0, 4, 1, 2, 3).contiguous()
    reference = F.one_hot(reference.squeeze(1), n_classes)
    reference = reference.permute(0, 4, 1, 2, 3).contiguous()
    intersection = (predicted * reference).sum(dim=(2, 3, 4))
    union = predicted.sum(dim=(2, 3, 4)) + reference.sum(dim=(2, 3, 4))
    return 2.0 * intersection / (union + 1e-5)


def folding_fraction(flow):
    """Share of voxels where the displacement along z overtakes its neighbour."""
    step = flow[:, :, 1:] - flow[:, :, :-1]
    return (step[:, 0] < -1).float().mean().item()


class Evaluation:
    def __init__(self, device):
        self.net = DisplacementNet().to(device).eval()
        self.transformer = SpatialTransformer(VOLUME).to(device)
        self.dice = []
        self.folding = []

    @torch.no_grad()
    def pair(self, scan, atlas, scan_labels, atlas_labels):
        flow = self.net(scan, atlas)
        warped = self.transformer(scan_labels.float(), flow, mode="nearest").long()
        self.dice.append(dice_per_structure(warped, atlas_labels).mean().item())
        self.folding.append(folding_fraction(flow))

    def report(self, done):
        print(f"{done:3d} pairs  dice {np.mean(self.dice):.4f}  "
              f"folding {np.mean(self.folding):.4f}")


def main():
    device = torch.device(sys.argv[1] if len(sys.argv) > 1 else "cuda")
    torch.manual_seed(0)
    evaluation = Evaluation(device)
    for index, pair in enumerate(SubjectPairs(PAIRS, device)):
        evaluation.pair(*pair)
        if index % 20 == 19:
            evaluation.report(index + 1)


if __name__ == "__main__":
    main()
