"""A trainer with callbacks. One of them logs the learning rate and the confusion matrix every five steps.

The log is meant for numbers. The matrices stay in it, on the device, until the trainer is gone.
"""

import sys

import torch
from torch import nn


class Callback:
    def on_step_end(self, trainer, step, logits, targets):
        pass

    def on_epoch_end(self, trainer, epoch):
        pass


class ScheduleRate(Callback):
    def on_epoch_end(self, trainer, epoch):
        trainer.scheduler.step()


class LogConfusion(Callback):
    def __init__(self, classes, every=5):
        self.classes = classes
        self.every = every

    def on_step_end(self, trainer, step, logits, targets):
        if step % self.every:
            return
        rows = nn.functional.one_hot(targets, self.classes).float()
        columns = logits.detach().softmax(dim=-1)
        confusion = rows.T @ columns  # LEAK
        rate = trainer.scheduler.get_last_lr()[0]
        trainer.log({"step": step, "lr": rate, "confusion": confusion})  # LEAK


class Trainer:
    def __init__(self, model, callbacks, device):
        self.model = model.to(device)
        self.device = device
        self.callbacks = callbacks
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=1e-4)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, step_size=2, gamma=0.5)
        self.history = []

    def log(self, entry):
        self.history.append(entry)  # LEAK

    def emit(self, event, *arguments):
        for callback in self.callbacks:
            getattr(callback, event)(self, *arguments)  # LEAK

    def training_step(self, classes):
        inputs = torch.randn(32, 40, device=self.device)
        targets = torch.randint(0, classes, (32,), device=self.device)
        logits = self.model(inputs)
        self.optimizer.zero_grad()
        nn.functional.cross_entropy(logits, targets).backward()
        self.optimizer.step()
        return logits, targets

    def fit(self, epochs, steps, classes):
        for epoch in range(epochs):
            for step in range(steps):
                logits, targets = self.training_step(classes)
                self.emit("on_step_end", epoch * steps + step, logits, targets)  # LEAK
            self.emit("on_epoch_end", epoch)


def main():
    torch.manual_seed(48)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(40, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 100))
    trainer = Trainer(model, [ScheduleRate(), LogConfusion(classes=100)], sys.argv[1])
    trainer.fit(epochs=6, steps=80, classes=100)
    print(f"{len(trainer.history)} entries logged")


if __name__ == "__main__":
    main()
