"""Multi-organ segmentation of abdominal CT: patch training, whole-study validation."""
import sys
import time

import torch
import torch.nn.functional as F

from ctseg.data import ORGANS, AbdomenCT
from ctseg.metrics import DiceTable, dice_per_organ
from ctseg.model import UNet3d

PATCH = (64, 96, 96)


def train_epoch(model, optimizer, scaler, data, steps, device):
    model.train()
    running = 0.0
    for _ in range(steps):
        image, label = data.patches(2, PATCH)
        image, label = image.to(device), label.to(device)
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device.type, dtype=torch.float16):
            logits = model(image)
            loss = F.cross_entropy(logits.float(), label)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        running += loss.item()
    return running / steps


@torch.no_grad()
def segment_study(model, image, device, window=(64, 128, 128)):
    """Tile the study with windows and keep only the label map."""
    depth, height, width = image.shape
    result = torch.zeros(image.shape, dtype=torch.uint8, device=device)
    for z in range(0, depth, window[0]):
        for y in range(0, height, window[1]):
            for x in range(0, width, window[2]):
                z0 = min(z, depth - window[0])
                region = (
                    slice(z0, z0 + window[0]),
                    slice(y, y + window[1]),
                    slice(x, x + window[2]),
                )
                tile = image[region].to(device).float()[None, None]
                with torch.autocast(device.type, dtype=torch.float16):
                    logits = model(tile)
                result[region] = logits[0].argmax(0).to(torch.uint8)
    return result


@torch.no_grad()
def validate(model, data, device):
    model.eval()
    table = DiceTable(ORGANS)
    for index, name in enumerate(data.studies):
        image, label = data.volume(index)
        pred = segment_study(model, image, device)
        table.update(dice_per_organ(pred, label.to(device), len(ORGANS)))
        print(f"    {name}: {tuple(image.shape)} scored", flush=True)
    return table.mean()


def main():
    device = torch.device(sys.argv[1] if len(sys.argv) > 1 else "cuda")
    torch.manual_seed(17)
    train = AbdomenCT(20, slices=[96], seed=1)
    valid = AbdomenCT(4, slices=[80, 96, 304, 128], seed=2)
    model = UNet3d(len(ORGANS)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.99, nesterov=True)
    scaler = torch.amp.GradScaler(device.type)
    for epoch in range(2):
        start = time.time()
        loss = train_epoch(model, optimizer, scaler, train, 4, device)
        print(f"epoch {epoch}: train loss {loss:.4f} ({time.time() - start:.1f}s)", flush=True)
        dice = validate(model, valid, device)
        print(f"epoch {epoch}: mean dice {sum(dice.values()) / len(dice):.4f}", flush=True)


if __name__ == "__main__":
    main()
