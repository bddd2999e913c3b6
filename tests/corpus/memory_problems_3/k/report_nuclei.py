"""Instance segmentation of nuclei on scanned biopsy fields."""
import sys
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class FieldResult:
    boxes: np.ndarray
    scores: np.ndarray
    areas: np.ndarray
    coverage: float


class ConvUnit(nn.Sequential):
    def __init__(self, cin, cout, stride=1):
        super().__init__(nn.Conv2d(cin, cout, 3, stride, 1, bias=False),
                         nn.BatchNorm2d(cout), nn.SiLU())


class NucleiNet(nn.Module):
    """Prototype masks plus per-location coefficients."""

    def __init__(self, prototypes=32):
        super().__init__()
        self.stem = nn.Sequential(ConvUnit(3, 16, 2), ConvUnit(16, 32, 2))
        self.down = nn.Sequential(ConvUnit(32, 64, 2), ConvUnit(64, 96, 2))
        self.proto = nn.Sequential(ConvUnit(32, 32), nn.Conv2d(32, prototypes, 1))
        self.head = nn.Conv2d(96, 5 + prototypes, 1)

    def forward(self, image):
        fine = self.stem(image)
        dense = self.head(self.down(fine)).flatten(2).transpose(1, 2)
        box, score, coefficients = dense.split([4, 1, dense.shape[-1] - 5], dim=-1)
        return self.proto(fine), box.sigmoid(), score.sigmoid().squeeze(-1), coefficients.tanh()


def keep_best(box, score, coefficients, limit):
    score, order = score.topk(limit, dim=-1)
    pick = order[..., None]
    return (box.gather(1, pick.expand(-1, -1, 4)), score,
            coefficients.gather(1, pick.expand(-1, -1, coefficients.shape[-1])))


def inside_boxes(boxes, height, width):
    """Column and row indicators of each box."""
    x1, y1, x2, y2 = boxes[:, :, None].unbind(1)
    cols = torch.arange(width, device=boxes.device)[None]
    rows = torch.arange(height, device=boxes.device)[None]
    return (cols >= x1) & (cols < x2), (rows >= y1) & (rows < y2)


def assemble_masks(prototypes, coefficients, boxes, shape):
    """Binary masks of every instance at the resolution of the scan."""
    height, width = shape
    low = (coefficients @ prototypes.flatten(1)).unflatten(1, prototypes.shape[-2:])
    full = F.interpolate(low[None], size=(height, width), mode="bilinear", align_corners=False)[0]
    masks = full > 0.0
    cols, rows = inside_boxes(boxes, height, width)
    masks &= cols[:, None, :]
    masks &= rows[:, :, None]
    return masks


class FieldAnalyser:
    def __init__(self, device, working=768, limit=110):
        self.device = device
        self.working = working
        self.limit = limit
        self.model = NucleiNet().to(device).eval()

    @torch.inference_mode()
    def __call__(self, scan):
        height, width = scan.shape[:2]
        image = torch.from_numpy(scan).to(self.device).permute(2, 0, 1)[None].float() / 255
        image = F.interpolate(image, size=(self.working, self.working), mode="area")
        prototypes, box, score, coefficients = self.model(image)
        box, score, coefficients = keep_best(box, score, coefficients, self.limit)
        extent = torch.tensor([width, height, width, height], device=self.device)
        boxes = box[0] * extent
        masks = assemble_masks(prototypes[0], coefficients[0], boxes, (height, width))
        areas = torch.stack([mask.sum() for mask in masks])
        coverage = masks.any(0).float().mean()
        return FieldResult(boxes.cpu().numpy(), score[0].cpu().numpy(),
                           areas.cpu().numpy(), float(coverage))


def scanned_fields(count, seed=13):
    rng = np.random.default_rng(seed)
    shapes = [(1536, 2048), (2048, 2048), (1536, 1536)]
    for index in range(count):
        height, width = shapes[index % len(shapes)]
        tint = rng.integers(120, 255, size=(height, width, 1), dtype=np.uint8)
        yield f"field_{index:03d}", np.repeat(tint, 3, axis=2)


def main():
    device = torch.device(sys.argv[1] if len(sys.argv) > 1 else "cuda")
    torch.manual_seed(1)
    analyser = FieldAnalyser(device)
    for name, scan in scanned_fields(6):
        result = analyser(scan)
        print(f"{name} {scan.shape[1]}x{scan.shape[0]} nuclei {len(result.scores)} "
              f"mean area {result.areas.mean():.1f} coverage {result.coverage:.3f}", flush=True)


if __name__ == "__main__":
    main()
