import os

import torch


def save(path, model, optimizer, step):
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, path)


class RunState:
    """What a run needs to go on: read from the newest file of the run's folder."""

    def __init__(self, folder, device):
        self.folder = folder
        self.device = device
        self.content = None

    @property
    def path(self):
        return os.path.join(self.folder, "last.pt")

    def read(self):
        self.content = torch.load(self.path, map_location=self.device)
        return self

    def apply(self, model, optimizer):
        model.load_state_dict(self.content["model"])
        optimizer.load_state_dict(self.content["optimizer"])
        return self.content["step"]

    @property
    def step(self):
        return self.content["step"]
