"""Long fine-tuning of an audio tagger; at the end the weights of the best epochs are averaged (a greedy soup)."""
import copy
import random

import torch
from torch import nn


class TaggerBlock(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.depthwise = nn.Conv1d(width, width, 9, padding=4, groups=width)
        self.pointwise = nn.Sequential(nn.Conv1d(width, 4 * width, 1), nn.GELU(), nn.Conv1d(4 * width, width, 1))
        self.norm = nn.BatchNorm1d(width)

    def forward(self, x):
        return x + self.pointwise(self.norm(self.depthwise(x)))


class Tagger(nn.Module):
    def __init__(self, bands=128, width=768, layers=12, tags=527):
        super().__init__()
        self.stem = nn.Conv1d(bands, width, 5, stride=2, padding=2)
        self.blocks = nn.Sequential(*[TaggerBlock(width) for _ in range(layers)])
        self.head = nn.Linear(width, tags)

    def forward(self, spectrogram):
        return self.head(self.blocks(self.stem(spectrogram)).mean(dim=2))


class GreedySoup:
    def __init__(self):
        self.ingredients = []

    def offer(self, model, score):
        self.ingredients.append((score, copy.deepcopy(model).eval()))

    def cook(self, evaluate):
        ranked = sorted(self.ingredients, key=lambda item: item[0], reverse=True)
        soup = ranked[0][1]
        members = 1
        best = evaluate(soup)
        for _, candidate in ranked[1:]:
            trial = copy.deepcopy(soup)
            with torch.no_grad():
                for mean, new in zip(trial.parameters(), candidate.parameters()):
                    mean.lerp_(new, 1.0 / (members + 1))
            score = evaluate(trial)
            if score >= best:
                soup, best, members = trial, score, members + 1
        return soup, members


class FineTuning:
    def __init__(self, epochs=60, steps=8, batch_size=24, frames=512):
        self.epochs, self.steps = epochs, steps
        self.shape = (batch_size, 128, frames)
        self.model = Tagger().cuda()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3, momentum=0.9)
        self.soup = GreedySoup()
        self.rng = random.Random(7)

    def batches(self, count):
        noise = torch.rand(self.shape)
        for _ in range(count):
            yield noise.cuda(), (torch.rand(self.shape[0], 527) > 0.99).float().cuda()

    def epoch(self):
        self.model.train()
        for spectrogram, tags in self.batches(self.steps):
            loss = nn.functional.binary_cross_entropy_with_logits(self.model(spectrogram), tags)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
        return loss.item()

    @torch.inference_mode()
    def evaluate(self, model):
        model.eval()
        for spectrogram, tags in self.batches(1):
            model(spectrogram).sigmoid()
        return self.rng.random()

    def run(self):
        for number in range(self.epochs):
            loss = self.epoch()
            score = self.evaluate(self.model)
            self.soup.offer(self.model, score)
            if number % 5 == 0:
                print(f"epoch {number:2d}: loss {loss:.4f}, mAP {score:.3f}")
        return self.soup.cook(self.evaluate)


if __name__ == "__main__":
    model, members = FineTuning().run()
    print(f"soup of {members} models")
