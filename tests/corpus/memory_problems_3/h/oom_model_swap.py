"""Document-layout service that follows a model registry and swaps in new detector releases."""
import logging
import random
import sys

import torch

from model_swap.detector import PageDetector
from model_swap.service import DetectionService

log = logging.getLogger("main")

RELEASES = {
    "2024.1": {"temperature": 10000.0},
    "2024.2": {"temperature": 20.0},
    "2024.3": {"temperature": 100.0},
}
PAGE_SIZES = [(1024, 736), (736, 1024), (1024, 1024), (896, 640)]


def build(version):
    return PageDetector(**RELEASES[version])


def requests(count, seed):
    rng = random.Random(seed)
    for _ in range(count):
        height, width = rng.choice(PAGE_SIZES)
        yield torch.zeros(3, height, width)


def main():
    logging.basicConfig(level=logging.INFO, format="%(name)s: %(message)s")
    device = torch.device(sys.argv[1] if len(sys.argv) > 1 else "cuda")
    torch.manual_seed(0)
    service = DetectionService(build, device)
    for seed, version in enumerate(RELEASES):
        service.load(version)
        boxes = 0
        for page in requests(8, seed):
            boxes += service.handle(page)["boxes"].shape[1]
        log.info("%s: %d boxes, %d pages served so far", version, boxes, service.served)


if __name__ == "__main__":
    main()
