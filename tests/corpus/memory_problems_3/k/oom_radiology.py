"""Batch job: segment organs on the CT studies that arrived over night."""
import sys
import time
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from ctseg import OrganNet, organ_volumes, sliding_logits, to_native_labels

ORGANS = 36
WORK_SPACING = (2.0, 2.0, 2.0)


@dataclass
class Study:
    name: str
    shape: tuple
    spacing: tuple

    def pixels(self):
        g = torch.Generator().manual_seed(sum(map(ord, self.name)))
        slab = torch.randint(-1000, 1200, self.shape[1:], generator=g, dtype=torch.int16)
        return slab.expand(self.shape)


WORKLIST = [
    Study("abdomen_routine_5mm", (88, 320, 320), (5.0, 1.0, 1.0)),
    Study("thorax_3mm", (124, 320, 320), (3.0, 1.0, 1.0)),
    Study("liver_biphasic_3mm", (140, 320, 320), (3.0, 0.95, 0.95)),
    Study("runoff_angio_thin", (520, 400, 400), (0.9, 0.8, 0.8)),
    Study("pelvis_5mm", (70, 320, 320), (5.0, 1.1, 1.1)),
]


def load(study, device):
    """Resample to the working spacing and normalise."""
    size = [max(64, round(n * s / w)) for n, s, w in zip(study.shape, study.spacing, WORK_SPACING)]
    ct = study.pixels().to(device).half()
    ct = F.interpolate(ct[None, None], size=size, mode="trilinear", align_corners=False)[0, 0].float()
    return (ct.clamp(-1000, 1000) + 50.0) / 400.0


def process(net, study, device):
    volume = load(study, device)
    logits = sliding_logits(net, volume, ORGANS)
    labels = to_native_labels(logits, study.shape)
    return tuple(volume.shape), organ_volumes(labels, study.spacing, ORGANS)


def main():
    device = torch.device(sys.argv[1] if len(sys.argv) > 1 else "cuda")
    torch.manual_seed(0)
    net = OrganNet(ORGANS).to(device).half().eval()
    for study in WORKLIST:
        t = time.time()
        grid, ml = process(net, study, device)
        print(f"{study.name:22s} native {study.shape} work {grid} total {sum(ml):.0f} ml  {time.time() - t:.1f}s", flush=True)
    print("worklist finished")


if __name__ == "__main__":
    main()
