"""Distils a teacher into a student and caches what the teacher says about a batch.

The key is the batch itself. Tensors are equal as keys only if they are the same object, and the loader makes new ones
in each epoch: nothing is ever found, and batches and answers pile up.
"""

import sys

import torch
from torch import nn


def network(width, device):
    return nn.Sequential(nn.Linear(60, width), nn.ReLU(), nn.Linear(width, 25)).to(device)


class Loader:
    def __init__(self, batches, batch_size, device):
        self.data = torch.randn(batches * batch_size, 60)
        self.batch_size = batch_size
        self.device = device

    def __iter__(self):
        for chunk in self.data.split(self.batch_size):
            yield chunk.to(self.device) + 0.0  # LEAK


class CachedTeacher:
    def __init__(self, teacher):
        self.teacher = teacher.eval()
        self.cache = {}

    @torch.no_grad()
    def __call__(self, batch):
        if batch not in self.cache:
            self.cache[batch] = torch.softmax(self.teacher(batch) / 2.0, dim=-1)  # LEAK
        return self.cache[batch]


def main():
    device = sys.argv[1]
    torch.manual_seed(45)
    torch.set_num_threads(1)
    teacher = CachedTeacher(network(256, device))
    student = network(32, device)
    optimizer = torch.optim.Adam(student.parameters(), lr=3e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=20)
    loader = Loader(batches=16, batch_size=40, device=device)
    for _epoch in range(20):
        for batch in loader:  # LEAK
            wanted = teacher(batch)  # LEAK
            loss = nn.functional.kl_div(student(batch).log_softmax(dim=-1), wanted, reduction="batchmean")
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        scheduler.step()
    print(f"{len(teacher.cache)} answers cached for {len(loader.data) // loader.batch_size} batches")


if __name__ == "__main__":
    main()
