"""Iterative magnitude pruning of a recogniser with weights rewound to their initial values."""
from copy import deepcopy
from dataclasses import dataclass, field

import torch
from torch import nn
from torch.nn.utils import prune


class KeywordNet(nn.Module):
    def __init__(self, bands=80, frames=100, classes=35):
        super().__init__()
        self.frontend = nn.Sequential(nn.Linear(bands * frames, 2048), nn.ReLU())
        self.trunk = nn.Sequential(nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, 1024), nn.ReLU())
        self.head = nn.Linear(1024, classes)

    def forward(self, x):
        return self.head(self.trunk(self.frontend(x.flatten(1))))


@dataclass
class LayerRef:
    data: nn.Module
    names: list = field(default_factory=list)


class Callback:
    def setup(self, trainer, model):
        pass

    def on_epoch_end(self, trainer, model):
        pass

    def on_fit_end(self, trainer, model):
        pass


class ModelPruning(Callback):
    def __init__(self, amount, use_lottery_ticket=True):
        self.amount = amount
        self.use_lottery_ticket = use_lottery_ticket
        self._parameters_to_prune = []
        self._original_layers = {}

    def setup(self, trainer, model):
        self._parameters_to_prune = [(m, "weight") for m in model.modules() if isinstance(m, nn.Linear)]
        if self.use_lottery_ticket:
            for module, name in self._parameters_to_prune:
                layer = self._original_layers.setdefault(module, LayerRef(data=deepcopy(module)))
                layer.names.append(name)

    def on_epoch_end(self, trainer, model):
        prune.global_unstructured(self._parameters_to_prune, prune.RandomUnstructured, amount=self.amount)
        if self.use_lottery_ticket:
            self.rewind()

    @torch.no_grad()
    def rewind(self):
        for module, name in self._parameters_to_prune:
            original = self._original_layers[module].data
            target = getattr(module, name + "_orig")
            target.copy_(getattr(original, name))

    def on_fit_end(self, trainer, model):
        for module, name in self._parameters_to_prune:
            prune.remove(module, name)


class MemoryPrinter(Callback):
    def on_fit_end(self, trainer, model):
        print(f"fit {trainer.name}: loss {trainer.last_loss:.4f}, {torch.cuda.memory_allocated() / 2**20:.0f} MiB",
              flush=True)


class Trainer:
    def __init__(self, name, epochs, steps, callbacks):
        self.name = name
        self.epochs = epochs
        self.steps = steps
        self.callbacks = callbacks
        self.last_loss = float("nan")

    def call(self, hook, model):
        for callback in self.callbacks:
            getattr(callback, hook)(self, model)

    def fit(self, model, data):
        self.call("setup", model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        for _ in range(self.epochs):
            for _ in range(self.steps):
                features, labels = data.batch()
                loss = nn.functional.cross_entropy(model(features), labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            self.last_loss = loss.item()
            self.call("on_epoch_end", model)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        self.call("on_fit_end", model)


class SpeechCommands:
    def __init__(self, batch_size, bands=80, frames=100, classes=35):
        self.batch_size, self.shape, self.classes = batch_size, (bands, frames), classes

    def batch(self):
        features = torch.zeros(self.batch_size, *self.shape)
        labels = torch.randint(0, self.classes, (self.batch_size,))
        return features.cuda(), labels.cuda()


def sparsity(model):
    weights = [m.weight for m in model.modules() if isinstance(m, nn.Linear)]
    return sum((w == 0).sum().item() for w in weights) / sum(w.numel() for w in weights)


def main(seeds=12):
    data = SpeechCommands(batch_size=128)
    pruning = ModelPruning(amount=0.2)
    results = {}
    for seed in range(seeds):
        torch.manual_seed(seed)
        model = KeywordNet().cuda()
        trainer = Trainer(f"seed {seed}", epochs=3, steps=6, callbacks=[pruning, MemoryPrinter()])
        trainer.fit(model, data)
        results[seed] = (trainer.last_loss, sparsity(model))
    print("best", min(results.items(), key=lambda item: item[1][0]))
    print("max allocated", torch.cuda.max_memory_allocated() // 2**20, "MiB")


if __name__ == "__main__":
    main()
