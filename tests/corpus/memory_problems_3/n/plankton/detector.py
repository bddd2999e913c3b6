"""One-stage detector for plankton in microscope frames."""
import torch
from torch import nn
from torch.nn import functional as F

from .blocks import Bottleneck, ConvUnit


class Detector(nn.Module):
    def __init__(self, classes=14, widths=(32, 64, 128, 256), repeats=(1, 2, 2)):
        super().__init__()
        layers = [ConvUnit(1, widths[0])]
        for cin, cout, count in zip(widths, widths[1:], repeats):
            layers.append(ConvUnit(cin, cout, stride=2))
            layers.extend(Bottleneck(cout) for _ in range(count))
        self.body = nn.Sequential(*layers)
        self.head = nn.Conv2d(widths[-1], classes + 5, 1)

    def forward(self, frames):
        return self.head(self.body(frames))


def detection_loss(output, target):
    box, presence, kind = output[:, :4], output[:, 4], output[:, 5:]
    place = F.smooth_l1_loss(box, target["box"])
    found = F.binary_cross_entropy_with_logits(presence, target["presence"])
    named = F.cross_entropy(kind, target["kind"])
    return 5.0 * place + found + named


def random_target(generator, count, size, classes=14):
    return {
        "box": torch.rand(count, 4, size, size, generator=generator),
        "presence": (torch.rand(count, size, size, generator=generator) > 0.97).float(),
        "kind": torch.randint(0, classes, (count, size, size), generator=generator),
    }
