"""Semi-supervised training with a teacher whose weights are an exponential moving average of the student's."""

import copy
import sys

import torch
from torch import nn


class Ema:
    def __init__(self, model, decay):
        self.decay = decay
        self.average = {name: p.detach().clone() for name, p in model.named_parameters()}

    @torch.no_grad()
    def update(self, model):
        for name, parameter in model.named_parameters():
            # a new tensor each time on purpose: the old one may still be used for a checkpoint
            self.average[name] = self.decay * self.average[name] + (1 - self.decay) * parameter

    def apply_to(self, model):
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter.copy_(self.average[name])
        return model


def main():
    device = sys.argv[1]
    torch.manual_seed(1)
    torch.set_num_threads(1)
    student = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 8)).to(device)
    ema = Ema(student, 0.99)
    optimizer = torch.optim.SGD(student.parameters(), lr=0.05)
    teacher = None
    for step in range(300):
        if step == 60:  # after the warm-up
            teacher = copy.deepcopy(student).requires_grad_(False)
        x = torch.randn(32, 64, device=device)
        loss = nn.functional.cross_entropy(student(x), torch.randint(0, 8, (32,), device=device))
        if teacher is not None:
            ema.apply_to(teacher)
            unlabelled = torch.randn(64, 64, device=device)
            wanted = teacher(unlabelled).softmax(dim=1)
            noisy = unlabelled + 0.1 * torch.randn_like(unlabelled)
            loss = loss + nn.functional.mse_loss(student(noisy).softmax(dim=1), wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        ema.update(student)
    print("last loss", loss.item())


if __name__ == "__main__":
    main()
