"""An image service whose handlers run on a thread pool; each thread has a scratch area of its own.

What is meant to be reused is appended: the thread-local list of scratch tensors grows with the requests.
"""

import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import torch
from torch.nn import functional as F

local = threading.local()


def scratch():
    if not hasattr(local, "buffers"):
        local.buffers = []
    return local.buffers


def resize(image, side):
    return F.interpolate(image[None], size=(side, side), mode="bilinear", align_corners=False)[0]


def normalize(image):
    mean = image.mean(dim=(1, 2), keepdim=True)
    std = image.std(dim=(1, 2), keepdim=True)
    scaled = (image - mean) / (std + 1e-5)  # LEAK
    scratch().append(scaled)  # LEAK
    return scaled


class Handler:
    def __init__(self, device):
        self.device = device
        self.kernel = torch.randn(4, 3, 3, 3, device=device)

    def __call__(self, number):
        generator = torch.Generator().manual_seed(number)
        image = torch.rand(3, 40, 60, generator=generator).to(self.device)
        small = resize(image, 32)
        features = F.conv2d(normalize(small)[None], self.kernel)  # LEAK
        return features.amax().item()


def main():
    handler = Handler(sys.argv[1])
    with ThreadPoolExecutor(max_workers=4) as pool:
        results = list(pool.map(handler, range(480)))
    print("answers:", len(results))


if __name__ == "__main__":
    main()
