"""Train a segmentation U-Net with a background thread that stages batches on the GPU."""
import atexit
import queue
import sys
import threading

import torch
import torch.nn.functional as F
from torch import nn

EPOCHS = 12
STEPS_PER_EPOCH = 10
BATCH_SIZE = 16
CROP = 512


class CropDataset:
    """Random crops from a few aerial images held in host memory."""

    def __init__(self, images=2, size=2048, classes=6):
        self.images = torch.zeros(images, 3, size, size, dtype=torch.uint8)
        self.masks = torch.zeros(images, size, size, dtype=torch.uint8)
        self.classes = classes

    def sample(self, generator):
        limit = self.images.shape[-1] - CROP
        i = torch.randint(len(self.images), (), generator=generator).item()
        y, x = torch.randint(limit, (2,), generator=generator).tolist()
        return (self.images[i, :, y:y + CROP, x:x + CROP],
                self.masks[i, y:y + CROP, x:x + CROP])

    def batches(self, seed):
        generator = torch.Generator().manual_seed(seed)
        while True:
            pairs = [self.sample(generator) for _ in range(BATCH_SIZE)]
            yield torch.stack([p[0] for p in pairs]), torch.stack([p[1] for p in pairs])


class Prefetcher:
    """Iterates over host batches in a thread and keeps `depth` of them ready on the device."""

    def __init__(self, batches, device, depth=8):
        self.batches = batches
        self.device = device
        self.queue = queue.Queue(maxsize=depth)
        self.stopped = threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()
        atexit.register(self.close)

    def _run(self):
        try:
            for images, masks in self.batches:
                images = images.to(self.device).float().div_(255).sub_(0.45).div_(0.22)
                masks = masks.to(self.device).long()
                self.queue.put((images, masks))
                if self.stopped.is_set():
                    return
            self.queue.put(None)
        except Exception as err:
            self.queue.put(err)

    def close(self):
        self.stopped.set()
        while self.thread.is_alive() or not self.queue.empty():
            try:
                self.queue.get(timeout=0.05)
            except queue.Empty:
                pass

    def __iter__(self):
        return self

    def __next__(self):
        item = self.queue.get()
        if item is None:
            raise StopIteration
        if isinstance(item, Exception):
            raise item
        return item


def conv_block(cin, cout):
    return nn.Sequential(
        nn.Conv2d(cin, cout, 3, padding=1, bias=False), nn.BatchNorm2d(cout), nn.ReLU(inplace=True),
    )


class SmallUNet(nn.Module):
    def __init__(self, classes, width=8):
        super().__init__()
        self.enc1 = conv_block(3, width)
        self.enc2 = conv_block(width, 2 * width)
        self.enc3 = conv_block(2 * width, 4 * width)
        self.dec2 = conv_block(6 * width, 2 * width)
        self.dec1 = conv_block(3 * width, width)
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, x):
        e1 = self.enc1(x)
        e2 = self.enc2(F.max_pool2d(e1, 2))
        e3 = self.enc3(F.max_pool2d(e2, 2))
        d2 = self.dec2(torch.cat([e2, F.interpolate(e3, scale_factor=2.0)], 1))
        d1 = self.dec1(torch.cat([e1, F.interpolate(d2, scale_factor=2.0)], 1))
        return self.head(d1)


def train_epoch(model, optimizer, batches):
    total = 0.0
    for step, (images, masks) in enumerate(batches):
        if step == STEPS_PER_EPOCH:
            break
        loss = F.cross_entropy(model(images), masks)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        total += loss.item()
    return total / STEPS_PER_EPOCH


def main():
    device = torch.device(sys.argv[1] if len(sys.argv) > 1 else "cuda")
    torch.manual_seed(0)
    dataset = CropDataset()
    model = SmallUNet(dataset.classes).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS)
    for epoch in range(EPOCHS):
        batches = Prefetcher(dataset.batches(seed=epoch), device)
        loss = train_epoch(model, optimizer, batches)
        schedule.step()
        print(f"epoch {epoch}: loss {loss:.4f} lr {schedule.get_last_lr()[0]:.4f}", flush=True)


if __name__ == "__main__":
    main()
