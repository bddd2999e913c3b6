"""Stitches drone images of vineyards into mosaics and keeps the descriptors of recent images for matching."""
import collections
import itertools

import torch
from torch import nn
import torch.nn.functional as F

DEVICE = torch.device("cuda")
RECENT = 30
IMAGES_PER_MOSAIC = 11
MOSAICS = 30
CANVAS = (4, 9984, 9984)


class Describer(nn.Module):
    def __init__(self, width=96):
        super().__init__()
        self.first = nn.Conv2d(3, 32, 5, stride=2, padding=2)
        self.second = nn.Conv2d(32, width, 3, stride=2, padding=1)

    def forward(self, image):
        x = F.relu(self.first(image))
        return F.normalize(self.second(x), dim=1)


def flight():
    """Images in the order of the flight lines."""
    for number in itertools.count():
        yield number, torch.full((1, 3, 1024, 1024), (number % 13) / 13)


def place(number):
    """Row and column of an image in its mosaic."""
    index = number % IMAGES_PER_MOSAIC
    return (index // 4) * 900, (index % 4) * 900


def match(descriptor, recent):
    """How well the new image overlaps with each of the recent ones."""
    small = F.adaptive_avg_pool2d(descriptor, 8).flatten(1)
    others = [F.adaptive_avg_pool2d(d, 8).flatten(1) for _, d in recent]
    return torch.cat([small @ o.T for o in others]).flatten() if others else None


def blend(images):
    canvas = torch.zeros(CANVAS, device=DEVICE)
    for number, image in images:
        top, left = place(number)
        canvas[:3, top: top + 1024, left: left + 1024] += image[0]
        canvas[3, top: top + 1024, left: left + 1024] += 1
    canvas[3].clamp_(min=1)
    canvas[:3] /= canvas[3:]
    return F.interpolate(canvas[None, :3], scale_factor=1 / 16)[0].cpu()


@torch.inference_mode()
def run():
    torch.manual_seed(0)
    describer = Describer().to(DEVICE).eval()
    recent = collections.deque(maxlen=RECENT)
    images, previews, links = [], [], 0
    for number, image in flight():
        image = image.to(DEVICE)
        images.append((number, image))
        descriptor = describer(image)
        scores = match(descriptor, recent)
        links += 0 if scores is None else int((scores > 0.5).sum())
        recent.append((number, descriptor))
        if len(images) == IMAGES_PER_MOSAIC:
            previews.append(blend(images))
            images.clear()
            print(f"mosaic {len(previews)}: {links} links, allocated {torch.cuda.memory_allocated() >> 20} MiB, "
                  f"reserved {torch.cuda.memory_reserved() >> 20} MiB", flush=True)
        if len(previews) == MOSAICS:
            break
    return torch.stack(previews)


if __name__ == "__main__":
    print(tuple(run().shape))
