"""Federated averaging: every round copies the model to some clients, trains the copies and averages their updates."""

import copy
import random
import sys

import torch
from torch import nn

import pytorch_alloctrace as alloctrace


class Client:
    def __init__(self, number, device):
        self.shift = number / 20
        self.device = device

    def train(self, model):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        for _ in range(3):
            x = torch.randn(16, 20, device=self.device)
            loss = nn.functional.mse_loss(model(x), x.sum(dim=1, keepdim=True) + self.shift)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return model.state_dict()


class Coordinator:
    def __init__(self, model):
        self.model = model
        self.previous = []

    def round(self, clients):
        updates = [client.train(copy.deepcopy(self.model)) for client in clients]
        mean = {name: torch.stack([u[name] for u in updates]).mean(dim=0) for name in updates[0]}
        self.previous.append(copy.deepcopy(self.model.state_dict()))
        if len(self.previous) > 10:
            self.previous.pop(0)
        self.model.load_state_dict(mean)


def main():
    device = sys.argv[1]
    torch.manual_seed(16)
    torch.set_num_threads(1)
    rng = random.Random(16)
    clients = [Client(n, device) for n in range(20)]
    coordinator = Coordinator(nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 1)).to(device))
    for _ in range(50):
        coordinator.round(rng.sample(clients, 4))
        alloctrace.step()
    print("versions kept:", len(coordinator.previous))


if __name__ == "__main__":
    main()
