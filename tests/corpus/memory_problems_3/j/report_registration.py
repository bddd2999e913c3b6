"""Evaluate deformable brain MRI registration: warp an atlas segmentation and score every structure."""
import sys

import torch
import torch.nn.functional as F
from torch import nn

SHAPE = (128, 160, 144)
STRUCTURES = 36


class Stage(nn.Sequential):
    def __init__(self, cin, cout, stride=1):
        super().__init__(
            nn.Conv3d(cin, cout, 3, stride=stride, padding=1),
            nn.InstanceNorm3d(cout),
            nn.LeakyReLU(0.2, inplace=True),
        )


class FlowNet(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.enter = Stage(2, 8, stride=2)
        self.down = Stage(8, width, stride=2)
        self.deep = Stage(width, 2 * width, stride=2)
        self.up = nn.ConvTranspose3d(2 * width, width, 2, stride=2)
        self.merge = Stage(2 * width, width)
        self.flow = nn.Conv3d(width, 3, 3, padding=1)

    def forward(self, moving, fixed):
        shallow = self.down(self.enter(torch.cat([moving, fixed], 1)))
        x = self.merge(torch.cat([self.up(self.deep(shallow)), shallow], 1))
        return F.interpolate(self.flow(x), size=SHAPE, mode="trilinear", align_corners=False)


class Warp(nn.Module):
    def __init__(self, shape):
        super().__init__()
        axes = [torch.linspace(-1, 1, n) for n in shape]
        grid = torch.stack(torch.meshgrid(*axes, indexing="ij")[::-1], -1)
        self.register_buffer("grid", grid.unsqueeze(0))

    def forward(self, volume, flow, mode="bilinear"):
        where = self.grid + flow.permute(0, 2, 3, 4, 1).flip(-1)
        return F.grid_sample(volume, where, mode=mode, padding_mode="border", align_corners=True)


class OverlapScore:
    """Dice of every labelled structure, averaged over the subjects seen."""

    def __init__(self, structures):
        self.structures = structures
        self.rows = []

    def update(self, warped, target):
        warped = self.encode(warped)
        target = self.encode(target)
        shared = (warped * target).sum((2, 3, 4))
        total = warped.sum((2, 3, 4)) + target.sum((2, 3, 4))
        self.rows.append((2.0 * shared / (total + 1e-5)).cpu())

    def encode(self, labels):
        planes = F.one_hot(labels.squeeze(1), self.structures)
        return planes.permute(0, 4, 1, 2, 3).contiguous()

    def mean(self):
        return torch.cat(self.rows)[:, 1:].mean()


def folding(flow):
    dz = flow[:, :, 1:, :-1, :-1] - flow[:, :, :-1, :-1, :-1]
    dy = flow[:, :, :-1, 1:, :-1] - flow[:, :, :-1, :-1, :-1]
    return ((1 + dz[:, 0]) * (1 + dy[:, 1]) < 0).float().mean()


def subjects(count):
    rng = torch.Generator().manual_seed(21)
    for i in range(count):
        scan = torch.rand(1, 1, *SHAPE, generator=rng)
        labels = torch.randint(0, STRUCTURES, (1, 1, *SHAPE), generator=rng, dtype=torch.uint8)
        yield f"sub-{i:02d}", scan, labels


@torch.no_grad()
def evaluate(net, warp, atlas, atlas_labels, device, count):
    score = OverlapScore(STRUCTURES)
    folds = []
    for name, scan, labels in subjects(count):
        fixed = scan.to(device)
        flow = net(atlas, fixed)
        similarity = F.mse_loss(warp(atlas, flow), fixed)
        moved = warp(atlas_labels.float(), flow, mode="nearest").clamp_(0, STRUCTURES - 1).long()
        score.update(moved, labels.to(device).long())
        folds.append(folding(flow))
        print(f"{name}: similarity {float(similarity):.4f}")
    return score.mean(), torch.stack(folds).mean()


def main(device):
    torch.manual_seed(9)
    net = FlowNet().to(device).eval()
    warp = Warp(SHAPE).to(device)
    _, atlas, atlas_labels = next(subjects(1))
    dice, folds = evaluate(net, warp, atlas.to(device), atlas_labels.to(device), device, count=4)
    print(f"mean dice {float(dice):.3f}, folding voxels {float(folds):.5f}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "cuda")
