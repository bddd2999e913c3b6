"""Serves twelve models, of which four fit on the device: the one that was used least recently goes back to the host."""

import collections
import random
import sys

import torch
from torch import nn

import pytorch_alloctrace as alloctrace


class HostedModel:
    def __init__(self, name, hidden):
        self.name = name
        self.network = nn.Sequential(nn.Linear(48, hidden), nn.ReLU(), nn.Linear(hidden, 48)).requires_grad_(False)
        self.host_state = {key: value.clone() for key, value in self.network.state_dict().items()}


class DevicePool:
    def __init__(self, models, slots, device):
        self.models = models
        self.slots = slots
        self.device = device
        self.loaded = collections.OrderedDict()
        self.swaps = 0

    def acquire(self, name):
        if name in self.loaded:
            self.loaded.move_to_end(name)
            return self.loaded[name]
        if len(self.loaded) == self.slots:
            self.loaded.popitem(last=False)
        self.swaps += 1
        state = self.models[name].host_state
        self.loaded[name] = {key: value.to(self.device).clone() for key, value in state.items()}
        return self.loaded[name]

    def run(self, name, inputs):
        return torch.func.functional_call(self.models[name].network, self.acquire(name), (inputs,))


def main():
    device = sys.argv[1]
    torch.manual_seed(82)
    torch.set_num_threads(1)
    rng = random.Random(82)
    models = {f"model-{i}": HostedModel(f"model-{i}", rng.choice([64, 128, 256])) for i in range(12)}
    pool = DevicePool(models, slots=4, device=device)
    names = list(models)
    weights = [1 / (1 + rank) for rank in range(12)]
    for request in range(700):
        if request % 100 == 99:
            rng.shuffle(names)  # another model becomes popular
        name = rng.choices(names, weights)[0]
        pool.run(name, torch.randn(rng.randint(1, 16), 48, device=device))
        alloctrace.step()
    print(f"{pool.swaps} swaps")


if __name__ == "__main__":
    main()
