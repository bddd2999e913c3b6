"""Segment CT volumes of a cohort with a 3D residual network and a sliding window."""
import argparse
import itertools
import math

import torch
from torch import nn
from torch.nn import functional as F


class ResidualBlock(nn.Module):
    def __init__(self, channels, dilation):
        super().__init__()
        self.body = nn.Sequential(
            nn.InstanceNorm3d(channels), nn.ReLU(inplace=True),
            nn.Conv3d(channels, channels, 3, padding=dilation, dilation=dilation),
        )

    def forward(self, x):
        return x + self.body(x)


class HighResNet(nn.Module):
    def __init__(self, in_channels=1, classes=9, width=16):
        super().__init__()
        self.stem = nn.Conv3d(in_channels, width, 3, padding=1)
        self.blocks = nn.Sequential(*[ResidualBlock(width, d) for d in (1, 1, 2, 2, 4)])
        self.head = nn.Conv3d(width, classes, 1)

    def forward(self, x):
        return self.head(self.blocks(self.stem(x)))


def scan_starts(size, roi, overlap):
    step = max(1, int(roi * (1 - overlap)))
    count = max(1, math.ceil((size - roi) / step) + 1)
    return [min(i * step, size - roi) for i in range(count)]


def dense_patch_slices(shape, roi_size, overlap):
    axes = [scan_starts(s, r, overlap) for s, r in zip(shape, roi_size)]
    for corner in itertools.product(*axes):
        yield tuple(slice(c, c + r) for c, r in zip(corner, roi_size))


def pad_to_roi(volume, roi_size):
    pad = []
    for size, roi in zip(reversed(volume.shape[2:]), reversed(roi_size)):
        missing = max(roi - size, 0)
        pad.extend([missing // 2, missing - missing // 2])
    return F.pad(volume, pad)


def sliding_window_inference(inputs, roi_size, sw_batch_size, predictor, overlap=0.25):
    inputs = pad_to_roi(inputs, roi_size)
    image_size = inputs.shape[2:]
    windows = list(dense_patch_slices(image_size, roi_size, overlap))

    slice_batches = []
    for start in range(0, len(windows), sw_batch_size):
        group = windows[start:start + sw_batch_size]
        slice_batches.append(torch.stack([inputs[(0, slice(None)) + window] for window in group]))

    output_rois = []
    for data in slice_batches:
        seg_prob = predictor(data)
        output_rois.append(seg_prob)

    classes = output_rois[0].shape[1]
    output_image = torch.zeros((1, classes) + tuple(image_size), device=inputs.device)
    count_map = torch.zeros((1, 1) + tuple(image_size), device=inputs.device)
    for index, roi in enumerate(output_rois):
        for offset in range(roi.shape[0]):
            where = (0, slice(None)) + windows[index * sw_batch_size + offset]
            output_image[where] += roi[offset]
            count_map[where] += 1.0
    return output_image.div_(count_map)


class Cohort:
    def __init__(self, patients, seed=7):
        generator = torch.Generator().manual_seed(seed)
        self.depths = torch.randint(96, 129, (patients,), generator=generator).tolist()

    def __iter__(self):
        for number, depth in enumerate(self.depths):
            yield f"patient{number:03d}", torch.zeros(1, 1, 192, 192, depth)


def organ_volumes(labels, classes, spacing=(1.5, 1.5, 2.0)):
    voxel = spacing[0] * spacing[1] * spacing[2] / 1000.0
    return [float((labels == c).sum().item()) * voxel for c in range(1, classes)]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--patients", type=int, default=5)
    parser.add_argument("--roi", type=int, default=48)
    parser.add_argument("--sw-batch-size", type=int, default=4)
    parser.add_argument("--overlap", type=float, default=0.5)
    args = parser.parse_args()

    device = torch.device("cuda")
    model = HighResNet().to(device).eval()
    for name, volume in Cohort(args.patients):
        with torch.no_grad():
            scores = sliding_window_inference(volume.to(device), (args.roi,) * 3, args.sw_batch_size, model,
                                              args.overlap)
            labels = scores.argmax(dim=1).to(torch.uint8).cpu()
        del scores
        print(name, tuple(labels.shape), f"{sum(organ_volumes(labels, 9)):.0f} ml",
              f"{torch.cuda.memory_allocated() / 2**20:.0f} MiB")
    print("max allocated", torch.cuda.max_memory_allocated() // 2**20, "MiB")


if __name__ == "__main__":
    main()
