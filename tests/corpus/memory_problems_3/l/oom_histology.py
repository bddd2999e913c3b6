"""Cross-validated tumour grading from tile features of whole slides."""
import sys
import time
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch.optim.lr_scheduler import OneCycleLR

from slidemil.cohort import Cohort
from slidemil.model import SlideClassifier


@dataclass
class FoldResult:
    fold: int
    slides: int
    losses: list
    accuracy: float
    schedule: object

    def describe(self):
        lr = self.schedule.get_last_lr()[0]
        return (f"fold {self.fold}: {self.slides} slides, loss {self.losses[0]:.3f} -> {self.losses[-1]:.3f}, "
                f"accuracy {self.accuracy:.3f}, final lr {lr:.2e}")


def train_fold(model, cohort, indices, device, epochs):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=1e-2)
    scheduler = OneCycleLR(optimizer, max_lr=2e-4, total_steps=epochs * len(indices))
    losses = []
    model.train()
    for _ in range(epochs):
        total = 0.0
        for index in indices:
            tiles, grade = cohort.slide(index)
            loss = F.cross_entropy(model(tiles.to(device)), grade.to(device))
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            scheduler.step()
            total += loss.item()
        losses.append(total / len(indices))
    return losses, scheduler


@torch.no_grad()
def evaluate(model, cohort, indices, device):
    model.eval()
    correct = 0
    for index in indices:
        tiles, grade = cohort.slide(index)
        correct += int(model(tiles.to(device)).argmax(1).cpu() == grade)
    return correct / max(1, len(indices))


def run_fold(fold, cohort, split, device, epochs=1):
    train, test = split
    model = SlideClassifier(features=cohort.features).to(device)
    losses, scheduler = train_fold(model, cohort, train, device, epochs)
    accuracy = evaluate(model, cohort, test, device)
    return FoldResult(fold, len(train), losses, accuracy, scheduler)


def cross_validate(cohort, device, k=8):
    results = []
    for fold, split in enumerate(cohort.folds(k)):
        start = time.time()
        results.append(run_fold(fold, cohort, split, device))
        print(f"fold {fold} done in {time.time() - start:.1f}s", flush=True)
    return results


def main():
    device = torch.device(sys.argv[1] if len(sys.argv) > 1 else "cuda")
    torch.manual_seed(31)
    cohort = Cohort(12, features=1536, seed=31)
    results = cross_validate(cohort, device)
    for result in results:
        print(result.describe())
    print(f"mean accuracy {np.mean([r.accuracy for r in results]):.3f}")


if __name__ == "__main__":
    main()
