"""Surface velocity of a river from drone video: dense optical flow between consecutive frames."""
import sys
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn
import torch.nn.functional as F

from flowkit import CorrBlock, FeatureNet, UpdateNet


@dataclass
class Survey:
    height: int = 1080
    width: int = 1920
    frames: int = 5
    metres_per_pixel: float = 0.021
    fps: float = 29.97


class FlowModel(nn.Module):
    def __init__(self, dim=256, hidden=96, iters=12):
        super().__init__()
        self.iters = iters
        self.hidden = hidden
        self.features = FeatureNet(dim)
        self.context = FeatureNet(hidden)
        self.update = UpdateNet(corr_dim=4 * 81, hidden=hidden)

    def forward(self, first, second):
        fmap1, fmap2 = self.features(torch.cat([first, second])).chunk(2)
        state = torch.tanh(self.context(first))
        corr_fn = CorrBlock(fmap1, fmap2)
        coords0 = pixel_grid(state)
        coords1 = coords0.clone()
        for _ in range(self.iters):
            corr = corr_fn(coords1)
            state, delta = self.update(state, corr, coords1 - coords0)
            coords1 = coords1 + delta
        return upsample(coords1 - coords0)


def pixel_grid(like):
    n, _, h, w = like.shape
    y, x = torch.meshgrid(torch.arange(h, device=like.device), torch.arange(w, device=like.device), indexing="ij")
    return torch.stack([x, y]).float()[None].repeat(n, 1, 1, 1)


def upsample(flow):
    return 8 * F.interpolate(flow, scale_factor=8, mode="bilinear", align_corners=True)


def read_frames(survey, seed=11):
    rng = np.random.default_rng(seed)
    ripple = rng.integers(0, 255, (survey.height, survey.width, 3), dtype=np.uint8)
    for t in range(survey.frames):
        yield np.roll(ripple, 3 * t, axis=1)


def to_input(frame, device):
    image = torch.from_numpy(frame).to(device).permute(2, 0, 1)[None].float() / 255
    pad = -image.shape[-2] % 64, -image.shape[-1] % 64
    return F.pad(image, (0, pad[1], 0, pad[0]), mode="replicate")


def surface_speed(flow, survey):
    speed = flow.norm(dim=1) * survey.metres_per_pixel * survey.fps
    return speed[:, :survey.height, :survey.width]


@torch.no_grad()
def process(model, survey, device):
    mean_speed = []
    previous = None
    for frame in read_frames(survey):
        image = to_input(frame, device)
        if previous is not None:
            flow = model(previous, image)
            mean_speed.append(surface_speed(flow, survey).mean().item())
            print(f"pair {len(mean_speed)}: {mean_speed[-1]:.3f} m/s", flush=True)
        previous = image
    return mean_speed


def main(device):
    torch.manual_seed(0)
    survey = Survey()
    model = FlowModel().to(device).eval()
    speeds = process(model, survey, device)
    print("median surface speed", float(np.median(speeds)))


if __name__ == "__main__":
    main(torch.device(sys.argv[1]))
