"""Prepare video clips for action recognition: decode, resize, cut into windows, all on the GPU."""
import collections
import logging
import random
import sys
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F

log = logging.getLogger("ingest")

WINDOW = 16
STRIDE = 8
CROP = 224


class ClipError(Exception):
    pass


@dataclass
class Clip:
    name: str
    frames: int
    height: int
    width: int
    shot_cuts: list


@dataclass
class Report:
    written: int = 0
    windows: int = 0
    failed: dict = field(default_factory=dict)

    def summary(self):
        kinds = collections.Counter(type(e).__name__ + ": " + str(e) for e in self.failed.values())
        lines = [f"{self.written} clips, {self.windows} windows written"]
        lines += [f"  {n} x {kind}" for kind, n in kinds.most_common()]
        return "\n".join(lines)


def list_clips(count, seed=3):
    rng = random.Random(seed)
    sizes = [(720, 1280), (540, 960), (720, 1280), (480, 848)]
    for i in range(count):
        height, width = rng.choice(sizes)
        frames = rng.randint(32, 64)
        if rng.random() < 0.4:
            cuts = list(range(6, frames, rng.randint(8, 14)))
        else:
            cuts = []
        yield Clip(f"clip_{i:05d}.mp4", frames, height, width, cuts)


def decode(clip):
    return torch.empty(clip.frames, clip.height, clip.width, 3, dtype=torch.uint8)


def find_windows(clip):
    edges = [0, *clip.shot_cuts, clip.frames]
    windows = []
    for start, stop in zip(edges, edges[1:]):
        windows.extend(range(start, stop - WINDOW + 1, STRIDE))
    if not windows:
        raise ClipError(f"no shot of {WINDOW} frames")
    return windows


class Preprocessor:
    def __init__(self, device):
        self.device = device
        self.mean = torch.tensor([0.432, 0.395, 0.377], device=device).view(1, 3, 1, 1)
        self.std = torch.tensor([0.228, 0.221, 0.217], device=device).view(1, 3, 1, 1)

    def __call__(self, clip):
        frames = decode(clip).to(self.device)
        video = frames.permute(0, 3, 1, 2).float().div_(255)
        scale = 256 / min(clip.height, clip.width)
        small = F.interpolate(video, scale_factor=scale, mode="bilinear", align_corners=False)
        small = (small - self.mean) / self.std
        top = (small.shape[2] - CROP) // 2
        left = (small.shape[3] - CROP) // 2
        small = small[:, :, top:top + CROP, left:left + CROP]
        starts = find_windows(clip)
        return torch.stack([small[s:s + WINDOW] for s in starts]).half()


class ShardWriter:
    def __init__(self):
        self.bytes = 0

    def write(self, name, windows):
        host = windows.cpu()
        self.bytes += host.numel() * host.element_size()


def ingest(clips, device):
    prepare = Preprocessor(device)
    writer = ShardWriter()
    report = Report()
    for clip in clips:
        try:
            windows = prepare(clip)
        except ClipError as err:
            log.warning("%s: %s", clip.name, err)
            report.failed[clip.name] = err
            continue
        writer.write(clip.name, windows)
        report.written += 1
        report.windows += len(windows)
    log.info("%.1f MB of shards", writer.bytes / 1e6)
    return report


def main():
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
    device = torch.device(sys.argv[1] if len(sys.argv) > 1 else "cuda")
    report = ingest(list_clips(80), device)
    print(report.summary())


if __name__ == "__main__":
    main()
