"""Trains a translator; four micro-batches make an update."""
import torch
from torch import nn

from seq2seq.model import Translator

UPDATES = 25
ACCUMULATE = 4


def sentence_pairs(count, size=16, length=64, vocabulary=20000):
    for _ in range(count):
        source = torch.randint(0, vocabulary, (size, length))
        target = torch.randint(0, vocabulary, (size, length + 1))
        yield source.cuda(non_blocking=True), target.cuda(non_blocking=True)


class Updater:
    def __init__(self):
        self.model = Translator().cuda()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-4, fused=True)
        self.criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
        self.pending = 0

    def micro_step(self, source, target):
        scores = self.model(source, target[:, :-1])
        loss = self.criterion(scores.flatten(0, 1), target[:, 1:].flatten()) / ACCUMULATE
        loss.backward()
        self.pending += 1
        if self.pending == ACCUMULATE:
            self.update()
        return loss.detach() * ACCUMULATE

    def update(self):
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=False)
        self.pending = 0


def main():
    updater = Updater()
    total = 0.0
    for number, (source, target) in enumerate(sentence_pairs(UPDATES * ACCUMULATE), start=1):
        total += updater.micro_step(source, target).item()
        if number % (5 * ACCUMULATE) == 0:
            print(f"update {number // ACCUMULATE}: loss {total / (5 * ACCUMULATE):.3f}")
            total = 0.0


if __name__ == "__main__":
    main()
