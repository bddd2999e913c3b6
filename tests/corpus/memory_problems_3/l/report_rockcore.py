"""Segment mineral phases in micro-CT scans of drill cores."""
import sys

import torch

from corescan.losses import CompoundLoss
from corescan.network import CoreUNet
from corescan.scans import CoreScans

PHASES = 40


def run_epoch(model, criterion, optimizer, scans, device, epoch):
    model.train()
    for i, (volume, labels) in enumerate(scans):
        volume, labels = volume.to(device), labels.to(device)
        optimizer.zero_grad()
        loss = criterion(model(volume), labels)
        loss.backward()
        optimizer.step()
        print(f"epoch {epoch} crop {i + 1}/{len(scans)}  {tuple(volume.shape[2:])}")


@torch.no_grad()
def phase_fractions(model, scans, device):
    model.eval()
    total = torch.zeros(PHASES, device=device)
    for volume, _ in scans:
        phase = model(volume.to(device)).argmax(dim=1)
        total += torch.histc(phase.float(), bins=PHASES, min=0, max=PHASES - 1)
    return total


def main():
    device = torch.device(sys.argv[1])
    torch.manual_seed(40)
    scans = CoreScans(n_crops=4, side=96, phases=PHASES, batch=2)
    model = CoreUNet(PHASES).to(device)
    criterion = CompoundLoss(PHASES, overlap_weight=0.7)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.99, nesterov=True)
    for epoch in range(2):
        run_epoch(model, criterion, optimizer, scans, device, epoch)
    fractions = phase_fractions(model, scans, device)
    print("phase fractions computed for", fractions.numel(), "phases")


if __name__ == "__main__":
    main()
