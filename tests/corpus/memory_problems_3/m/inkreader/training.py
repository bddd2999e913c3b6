from collections import Counter
from dataclasses import dataclass

import torch
import torch.nn as nn


@dataclass
class Rejected:
    batch: int
    reason: Exception


def check_alignment(steps, lengths):
    short = (steps < lengths).nonzero().flatten().tolist()
    if short:
        raise ValueError(f"transcript longer than the line image in rows {short}")


class Trainer:
    def __init__(self, model, device, lr=3e-4):
        self.model = model.to(device)
        self.device = device
        self.criterion = nn.CTCLoss(zero_infinity=True)
        self.optim = torch.optim.AdamW(model.parameters(), lr=lr)
        self.rejected = []

    def step(self, images, targets, widths, lengths):
        images = images.to(self.device).float().sub_(127.0).div_(64.0)
        log_probs = self.model(images)
        steps = self.model.steps(widths)
        check_alignment(steps, lengths)
        loss = self.criterion(log_probs.transpose(0, 1), targets.to(self.device), steps, lengths)
        self.optim.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 5.0)
        self.optim.step()
        return loss.item()

    def epoch(self, loader):
        total, used = 0.0, 0
        for i, batch in enumerate(loader):
            try:
                total += self.step(*batch)
                used += 1
            except ValueError as err:
                self.rejected.append(Rejected(i, err))
            if i % 10 == 0:
                print(f"batch {i:3d} used {used} rejected {len(self.rejected)}")
        return total / max(used, 1)

    def report(self):
        kinds = Counter(str(r.reason).split(" in rows")[0] for r in self.rejected)
        for kind, n in kinds.most_common():
            print(f"{n} batches: {kind}")
