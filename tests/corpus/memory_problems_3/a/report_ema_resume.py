"""Trains a network of several tasks on pictures of rooms in two runs, the second of which resumes the first."""
import argparse
import gc
import tempfile

import torch

from scene import CheckpointStore, ModelEma, SceneNet, scene_losses

WEIGHTS = {"classes": 1.0, "depth": 0.5, "normals": 0.5}


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--height", type=int, default=224)
    parser.add_argument("--width", type=int, default=288)
    parser.add_argument("--learning-rate", type=float, default=2e-2)
    return parser.parse_args()


def batch(options, device):
    size = (options.batch_size, 3, options.height, options.width)
    small = (options.height // 32, options.width // 32)
    images = torch.rand(size, device=device)
    targets = {
        "classes": torch.randint(0, 40, (options.batch_size, *small), device=device),
        "depth": torch.rand(options.batch_size, 1, *small, device=device),
        "normals": torch.randn(options.batch_size, 3, *small, device=device),
    }
    return images, targets


def build(options, device):
    model = SceneNet().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=options.learning_rate, momentum=0.9, weight_decay=1e-4)
    return model, ModelEma(model), optimizer


def train_epoch(options, model, ema, optimizer, device):
    totals = dict.fromkeys(WEIGHTS, 0.0)
    for _ in range(options.steps):
        images, targets = batch(options, device)
        losses = scene_losses(model(images), targets)
        optimizer.zero_grad()
        sum(WEIGHTS[name] * loss for name, loss in losses.items()).backward()
        optimizer.step()
        ema.update(model)
        for name, loss in losses.items():
            totals[name] += loss.item()
    return {name: total / options.steps for name, total in totals.items()}


def run(options, store, device, resume):
    torch.cuda.reset_peak_memory_stats()
    model, ema, optimizer = build(options, device)
    first = 0
    if resume:
        checkpoint = store.restore(model, ema, optimizer)
        first = checkpoint["epoch"] + 1
    for epoch in range(first, first + options.epochs):
        losses = train_epoch(options, model, ema, optimizer, device)
        described = ", ".join(f"{name} {value:.3f}" for name, value in losses.items())
        print(f"epoch {epoch}: {described}; {torch.cuda.memory_allocated() / 2**20:.0f} MiB allocated, "
              f"peak {torch.cuda.max_memory_allocated() / 2**20:.0f} MiB")
        store.save(epoch, model, ema, optimizer)


def main():
    options = parse_arguments()
    torch.manual_seed(0)
    device = torch.device("cuda")
    with tempfile.TemporaryDirectory() as folder:
        store = CheckpointStore(folder, device)
        run(options, store, device, resume=False)
        gc.collect()
        print("resuming")
        run(options, store, device, resume=True)


if __name__ == "__main__":
    main()
