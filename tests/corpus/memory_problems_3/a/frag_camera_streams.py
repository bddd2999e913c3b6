# Traffic counting: frames of many cameras, one detector; every camera has its own CUDA stream.
import itertools

import torch
from torch import nn

CAMERAS = [f"crossing-{number:02d}" for number in range(18)]
FRAME = (1080, 1920)
ROUNDS = 40


class Detector(nn.Module):
    def __init__(self, width=32, anchors=3, classes=6):
        super().__init__()
        stages, previous = [], 3
        for level in range(4):
            stages.append(nn.Sequential(
                nn.Conv2d(previous, width << level, 3, stride=2, padding=1, bias=False),
                nn.BatchNorm2d(width << level), nn.SiLU(inplace=True),
            ))
            previous = width << level
        self.stages = nn.ModuleList(stages)
        self.head = nn.Conv2d(previous, anchors * (5 + classes), 1)

    def forward(self, x):
        for stage in self.stages:
            x = stage(x)
        return self.head(x)


class CameraLane:
    def __init__(self, name, device):
        self.name = name
        self.device = device
        self.stream = torch.cuda.Stream(device)
        self.counts = torch.zeros(6, dtype=torch.long)
        self.pending = None

    def submit(self, detector, frame):
        with torch.cuda.stream(self.stream), torch.inference_mode():
            pixels = frame.to(self.device, non_blocking=True).unsqueeze(0).float().div_(255)
            maps = detector(pixels)
            classes = maps.unflatten(1, (3, -1))[:, :, 5:].amax(dim=(1, 3, 4))
            self.pending = (classes > 0.5).to("cpu", non_blocking=True)

    def collect(self):
        self.stream.synchronize()
        self.counts += self.pending.flatten().long()
        self.pending = None
        return self.counts


def frames():
    frame = torch.zeros(3, *FRAME, dtype=torch.uint8).pin_memory()
    return itertools.repeat(frame)


device = torch.device("cuda")
detector = Detector().to(device).eval()
lanes = {name: CameraLane(name, device) for name in CAMERAS}
source = frames()

for turn in range(ROUNDS):
    for lane in lanes.values():
        lane.submit(detector, next(source))
        lane.collect()
    if turn % 8 == 0:
        print(f"round {turn}: allocated at most {torch.cuda.max_memory_allocated() >> 20} MiB, "
              f"reserved {torch.cuda.memory_reserved() >> 20} MiB")

total = sum(lane.counts.sum().item() for lane in lanes.values())
print(f"{len(lanes)} cameras, {total} detections")
