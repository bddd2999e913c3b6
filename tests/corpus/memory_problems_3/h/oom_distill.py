"""Adapt a teacher language model to the domain, then distil it into a smaller student."""
import sys

import torch

from distill.nets import LanguageModel, size
from distill.stages import Distill, Finetune, Pipeline

VOCAB = 32000
CONTEXT = 256
BATCH_SIZE = 8

TEACHER = dict(dim=1152, layers=14, heads=18)
STUDENT = dict(dim=896, layers=10, heads=14)


def make_batches(device):
    def batches(steps):
        for _ in range(steps):
            block = torch.randint(0, VOCAB, (BATCH_SIZE, CONTEXT + 1), device=device)
            yield block[:, :-1], block[:, 1:]

    return batches


def build(shape, device):
    with device:
        return LanguageModel(VOCAB, context=CONTEXT, **shape)


@torch.no_grad()
def agreement(teacher, student, batches):
    hits, total = 0, 0
    for tokens, _ in batches(2):
        same = teacher(tokens).argmax(-1) == student(tokens).argmax(-1)
        hits += same.sum().item()
        total += same.numel()
    return hits / total


def main():
    device = torch.device(sys.argv[1] if len(sys.argv) > 1 else "cuda")
    torch.manual_seed(0)
    batches = make_batches(device)
    pipeline = Pipeline(batches)

    teacher = build(TEACHER, device)
    print(f"teacher {size(teacher) / 1e6:.0f}M parameters")
    teacher = pipeline.run(Finetune(teacher, lr=3e-5, steps=6))
    teacher.eval().requires_grad_(False)

    student = build(STUDENT, device)
    print(f"student {size(student) / 1e6:.0f}M parameters")
    student = pipeline.run(Distill(student, teacher, lr=3e-4, steps=12))
    student.eval()

    print(pipeline.summary())
    print(f"agreement {agreement(teacher, student, batches):.3f}")


if __name__ == "__main__":
    main()
