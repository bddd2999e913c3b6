"""Evaluate a land-cover model (50 classes) on Sentinel-2 chips.

    python report_landcover_eval.py cuda
"""
import sys

import torch
import torch.nn as nn
import torch.nn.functional as F

from report_landcover_eval_pkg.engine import Engine, Events
from report_landcover_eval_pkg.metrics import ConfusionMatrix

CLASSES, BANDS, CHIP = 50, 10, 256


class LandCoverNet(nn.Module):
    """Strided encoder, light decoder, class scores at the size of the chip."""

    def __init__(self, width=32):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(BANDS, width, 4, 4), nn.BatchNorm2d(width), nn.ReLU(True))
        self.deep = nn.Sequential(
            nn.Conv2d(width, 2 * width, 3, 2, 1), nn.BatchNorm2d(2 * width), nn.ReLU(True),
            nn.Conv2d(2 * width, 4 * width, 3, 2, 1), nn.BatchNorm2d(4 * width), nn.ReLU(True),
        )
        self.context = nn.Conv2d(4 * width, 2 * width, 1)
        self.classify = nn.Conv2d(3 * width, CLASSES, 1)

    def forward(self, x):
        fine = self.stem(x)
        coarse = self.context(self.deep(fine))
        coarse = F.interpolate(coarse, size=fine.shape[-2:], mode="bilinear", align_corners=False)
        scores = self.classify(torch.cat([fine, coarse], dim=1))
        return F.interpolate(scores, size=x.shape[-2:], mode="bilinear", align_corners=False)


class Chips:
    """Validation chips: reflectances as int16, labels as uint8."""

    def __init__(self, batches, batch_size, seed=31):
        generator = torch.Generator().manual_seed(seed)
        shape = (batch_size, BANDS, CHIP, CHIP)
        self.reflectance = torch.randint(0, 10000, shape, generator=generator, dtype=torch.int16)
        self.labels = torch.randint(0, CLASSES, (batch_size, CHIP, CHIP), generator=generator, dtype=torch.uint8)
        self.batches = batches

    def __iter__(self):
        for number in range(self.batches):
            yield self.reflectance.roll(number, dims=-1), self.labels.roll(number, dims=-1)


def create_evaluator(model, device):
    model.eval()

    @torch.no_grad()
    def inference(engine, batch):
        reflectance, labels = batch
        x = reflectance.to(device, torch.float32).div_(10000)
        y = labels.to(device, torch.int64)
        y_pred = F.softmax(model(x), dim=1)
        return y_pred, y

    return Engine(inference)


def main():
    device = torch.device(sys.argv[1] if len(sys.argv) > 1 else "cuda")
    torch.manual_seed(0)
    model = LandCoverNet().to(device)
    evaluator = create_evaluator(model, device)
    ConfusionMatrix(CLASSES, device).attach(evaluator, "mIoU")

    @evaluator.on(Events.ITERATION_COMPLETED, every=8)
    def log(engine):
        y_pred, _ = engine.state.output
        print(f"iteration {engine.state.iteration:3d}: mean top probability {y_pred.amax(1).mean().item():.3f}")

    state = evaluator.run(Chips(batches=40, batch_size=16))
    print(f"mIoU {state.metrics['mIoU']:.4f}")


if __name__ == "__main__":
    main()
