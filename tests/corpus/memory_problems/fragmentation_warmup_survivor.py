"""Upscales video frames; a warm-up with the largest tile comes first, then a reference frame, then the video.

True cause: the warm-up leaves one cached block of 1.5 GiB; the reference frame's two big buffers are cut from it with
the small reference features (12 MiB) between them; when the buffers are freed, the features stay in the middle, and
the frames of the video, larger than either half, need a new segment: the old one can be neither used nor released.
The line: `self.reference = reduce_features(stage1)`.
Cure: torch.cuda.empty_cache() after the warm-up (before the reference), or make the features before it; or clone them
after the buffers are freed and then empty the cache.
"""

import torch
import torch.nn.functional as F


def reduce_features(x):
    return F.avg_pool2d(x, 8)


class Upscaler:
    def __init__(self, channels=48):
        self.channels = channels
        self.reference = None

    def warm_up(self, height, width):
        buffer = torch.zeros(1, self.channels, height, width, device="cuda")
        buffer.mul_(0.5).add_(1)
        torch.cuda.synchronize()

    def set_reference(self, height, width):
        stage1 = torch.ones(1, self.channels, height, width, device="cuda")
        self.reference = reduce_features(stage1)  # CAUSE
        stage2 = stage1 * 0.5
        score = (stage2 - stage2.mean()).abs_().max()
        return score.item()

    def process(self, height, width):
        frame = torch.zeros(1, self.channels, height, width, device="cuda")
        guide = F.interpolate(self.reference, size=(height // 8, width // 8))
        frame[..., ::8, ::8] += guide
        return frame.mean().item()


def main():
    upscaler = Upscaler()
    upscaler.warm_up(2160, 3840)
    print("reference score", upscaler.set_reference(2048, 1920))
    for number in range(2000):
        brightness = upscaler.process(2160, 2560)
        if number % 500 == 0:
            print(f"frame {number}: {brightness:.3f}", flush=True)


if __name__ == "__main__":
    with torch.inference_mode():
        main()
