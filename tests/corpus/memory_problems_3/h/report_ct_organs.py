"""Whole-volume organ segmentation with sliding-window inference.

Predicts 24 organs on every CT of a study list, writes volumes in millilitres.

    python report_ct_organs.py cuda
"""
import itertools
import sys

import torch
import torch.nn as nn
import torch.nn.functional as F

ORGANS = 24
ROI = (64, 64, 64)


def conv(cin, cout, stride=1):
    return nn.Sequential(
        nn.Conv3d(cin, cout, 3, stride, 1, bias=False), nn.InstanceNorm3d(cout), nn.LeakyReLU(0.01, inplace=True)
    )


class UNet3d(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.enc1, self.enc2 = conv(1, width), conv(width, 2 * width, 2)
        self.enc3, self.enc4 = conv(2 * width, 4 * width, 2), conv(4 * width, 8 * width, 2)
        self.up3 = nn.ConvTranspose3d(8 * width, 4 * width, 2, 2)
        self.up2 = nn.ConvTranspose3d(4 * width, 2 * width, 2, 2)
        self.up1 = nn.ConvTranspose3d(2 * width, width, 2, 2)
        self.dec3, self.dec2, self.dec1 = (conv(2 * c, c) for c in (4 * width, 2 * width, width))
        self.out = nn.Conv3d(width, ORGANS, 1)

    def forward(self, x):
        s1 = self.enc1(x)
        s2 = self.enc2(s1)
        s3 = self.enc3(s2)
        x = self.up3(self.enc4(s3))
        x = self.up2(self.dec3(torch.cat([x, s3], 1)))
        x = self.up1(self.dec2(torch.cat([x, s2], 1)))
        return self.out(self.dec1(torch.cat([x, s1], 1)))


def window_starts(size, roi, overlap):
    step = max(1, int(roi * (1 - overlap)))
    starts = list(range(0, max(size - roi, 0) + 1, step))
    if starts[-1] + roi < size:
        starts.append(size - roi)
    return starts


def importance_map(roi, device):
    axes = [torch.exp(-0.5 * ((torch.arange(n) - (n - 1) / 2) / (n / 8)) ** 2) for n in roi]
    weights = axes[0][:, None, None] * axes[1][None, :, None] * axes[2][None, None, :]
    return weights.clamp_(min=1e-3).to(device)


def sliding_window_inference(inputs, roi, predictor, overlap=0.125):
    """Blend overlapping window predictions into one map of the size of `inputs`."""
    shape = inputs.shape[2:]
    weights = importance_map(roi, inputs.device)
    starts = itertools.product(*(window_starts(n, r, overlap) for n, r in zip(shape, roi)))

    output_image = torch.zeros((inputs.shape[0], ORGANS, *shape), device=inputs.device)
    count_map = torch.zeros((1, 1, *shape), device=inputs.device)
    for z, y, x in starts:
        window = (..., slice(z, z + roi[0]), slice(y, y + roi[1]), slice(x, x + roi[2]))
        prediction = predictor(inputs[window])
        output_image[window] += prediction * weights
        count_map[window] += weights
    return output_image / count_map


class StudyList:
    """CT volumes in Hounsfield units, cropped to the trunk."""

    shapes = [(160, 192, 176), (176, 208, 192)]

    def __iter__(self):
        generator = torch.Generator().manual_seed(17)
        for number, shape in enumerate(self.shapes):
            volume = torch.randint(-1024, 1500, shape, generator=generator, dtype=torch.int16)
            yield f"case_{number:03d}", volume, 1.5**3


def preprocess(volume, device):
    volume = volume.to(device).float().clamp_(-200, 300)
    return volume.add_(200).div_(500)[None, None]


@torch.inference_mode()
def segment(model, volume, device):
    logits = sliding_window_inference(preprocess(volume, device), ROI, model)
    probabilities = F.softmax(logits, dim=1)
    confidence, labels = probabilities.max(dim=1)
    return labels.to(torch.uint8).cpu(), confidence.mean().item()


def main():
    device = torch.device(sys.argv[1] if len(sys.argv) > 1 else "cuda")
    torch.manual_seed(0)
    model = UNet3d().to(device).eval()
    for name, volume, voxel_mm3 in StudyList():
        labels, confidence = segment(model, volume, device)
        sizes = torch.bincount(labels.flatten().clamp(max=ORGANS - 1), minlength=ORGANS)
        millilitres = sizes.float() * voxel_mm3 / 1000
        print(f"{name}: confidence {confidence:.3f}, largest structure {millilitres.max().item():.0f} ml")


if __name__ == "__main__":
    main()
