"""Queue worker: takes chains, answers with structures, keeps account of what went wrong."""
from collections import Counter
from dataclasses import dataclass

import torch

from .trunk import RESIDUES, ChainError, Trunk


@dataclass
class Job:
    name: str
    sequence: str
    bonds: list


@dataclass
class Failure:
    job: Job
    reason: Exception


class FoldWorker:
    def __init__(self, device):
        self.device = device
        self.trunk = Trunk().to(device).eval()
        self.done = {}
        self.failures = []

    def tokens(self, sequence):
        return torch.tensor([RESIDUES.index(r) for r in sequence], device=self.device)

    @torch.no_grad()
    def handle(self, job):
        try:
            answer = self.trunk(self.tokens(job.sequence), job.bonds)
        except ChainError as error:
            self.failures.append(Failure(job, error))
            return None
        self.done[job.name] = answer["confidence"]
        return answer

    def summary(self):
        kinds = Counter(type(f.reason).__name__ for f in self.failures)
        lines = [f"{f.job.name}: {f.reason}" for f in self.failures[:3]]
        return kinds, lines
