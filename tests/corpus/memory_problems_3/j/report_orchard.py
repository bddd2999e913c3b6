"""Train a leaf disease classifier on scanner crops from an apple orchard."""
import argparse
import time

import torch
import torch.nn.functional as F

from leafnet import LeafNet, LeafScans


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("device", nargs="?", default="cuda")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--size", type=int, default=192)
    parser.add_argument("--classes", type=int, default=14)
    return parser.parse_args()


def criterion(outputs, labels, grade):
    logits, severity = outputs
    return F.cross_entropy(logits, labels, label_smoothing=0.1) + 0.3 * F.smooth_l1_loss(severity, grade)


def train_epoch(model, loader, optimizer, schedule, device):
    model.train()
    total = torch.zeros((), device=device)
    for images, labels, grade in loader:
        images = images.to(device, non_blocking=True).sub_(0.5).div_(0.25)
        labels, grade = labels.to(device), grade.to(device)
        loss = criterion(model(images), labels, grade)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        total += loss.detach()
    return total / len(loader)


@torch.no_grad()
def evaluate(model, loader, device):
    model.eval()
    hits = torch.zeros((), device=device)
    seen = 0
    for images, labels, _ in loader:
        logits, _ = model(images.to(device).sub_(0.5).div_(0.25))
        hits += (logits.argmax(1) == labels.to(device)).sum()
        seen += len(labels)
    return hits / seen


def main():
    args = parse()
    torch.manual_seed(3)
    device = torch.device(args.device)
    model = LeafNet(args.classes).to(device)
    train = LeafScans(5, args.batch_size, args.size, args.classes)
    held_out = LeafScans(2, args.batch_size, args.size, args.classes, seed=12)
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-4, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.epochs * len(train))
    print(f"parameters: {sum(p.numel() for p in model.parameters()) / 1e6:.1f}M")
    for epoch in range(args.epochs):
        start = time.time()
        loss = train_epoch(model, train, optimizer, schedule, device)
        accuracy = evaluate(model, held_out, device)
        print(f"epoch {epoch}: loss {float(loss):.4f} accuracy {float(accuracy):.3f} ({time.time() - start:.1f}s)")


if __name__ == "__main__":
    main()
