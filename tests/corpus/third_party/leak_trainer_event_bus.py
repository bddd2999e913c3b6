"""A small training framework with an event bus, and a user's script that trains with it.

The bus keeps all published events "for late subscribers", with the outputs they carry.
"""

import sys
from dataclasses import dataclass, field

import torch
from torch import nn

# ---- the framework ----


@dataclass
class Event:
    name: str
    step: int
    payload: dict = field(default_factory=dict)


class EventBus:
    def __init__(self):
        self._subscribers = {}
        self._published = []

    def subscribe(self, name, callback):
        self._subscribers.setdefault(name, []).append(callback)

    def publish(self, event):
        self._published.append(event)  # LEAK
        for callback in self._subscribers.get(event.name, ()):
            callback(event)


class Trainer:
    def __init__(self, model, optimizer, loss_function):
        self.model = model
        self.optimizer = optimizer
        self.loss_function = loss_function
        self.bus = EventBus()
        self.step = 0

    def fit(self, batches):
        for inputs, targets in batches:
            outputs = self.model(inputs)  # LEAK
            loss = self.loss_function(outputs, targets)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.step += 1
            payload = {"outputs": outputs.detach(), "loss": loss.item()}
            self.bus.publish(Event("batch_end", self.step, payload))  # LEAK


# ---- the user's script ----


def toy_batches(count, device):
    for _ in range(count):
        x = torch.randn(32, 20, device=device)
        yield x, x.roll(1, dims=1).repeat(1, 10)


def main():
    device = sys.argv[1]
    torch.manual_seed(9)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(20, 64), nn.SiLU(), nn.Linear(64, 200)).to(device)
    trainer = Trainer(model, torch.optim.Adam(model.parameters()), nn.MSELoss())
    trainer.bus.subscribe("batch_end", lambda e: print(e.step, e.payload["loss"]) if e.step % 100 == 0 else None)
    trainer.fit(toy_batches(300, device))


if __name__ == "__main__":
    main()
