"""Render a turntable of a reconstructed object from a radiance field."""
import math
import sys

import numpy as np
import torch

from radiance import Camera, RadianceField, render_view

FRAMES = 3
HEIGHT, WIDTH = 360, 512


class Turntable:
    def __init__(self, field, device, height, width):
        self.field, self.device = field, device
        self.height, self.width = height, width

    def cameras(self, count):
        for i in range(count):
            yield Camera(self.height, self.width, azimuth=2 * math.pi * i / count)

    def shade(self, rgb, opacity, background=1.0):
        return (rgb + background * (1.0 - opacity).unsqueeze(-1)).clamp(0, 1)

    def frames(self, count):
        for camera in self.cameras(count):
            rgb, depth, opacity = render_view(self.field, camera, self.device)
            picture = self.shade(rgb, opacity)
            yield self.to_bytes(picture), depth.cpu().numpy()

    @staticmethod
    def to_bytes(picture):
        return (picture * 255).to(torch.uint8).cpu().numpy()


def summary(depth):
    finite = np.nan_to_num(depth)
    return float(finite.mean()), float(finite.std())


def main():
    device = torch.device(sys.argv[1] if len(sys.argv) > 1 else "cuda")
    torch.manual_seed(2)
    field = RadianceField().to(device).eval()
    table = Turntable(field, device, HEIGHT, WIDTH)
    frames = []
    for number, (picture, depth) in enumerate(table.frames(FRAMES)):
        mean, spread = summary(depth)
        frames.append(picture)
        print(f"frame {number}: {picture.shape[1]}x{picture.shape[0]} depth {mean:.2f} +- {spread:.2f}")
    print(f"turntable of {len(frames)} frames, {sum(f.nbytes for f in frames) / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
