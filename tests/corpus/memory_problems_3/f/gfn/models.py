import torch.nn as nn


def mlp(sizes):
    layers = []
    for a, b in zip(sizes[:-1], sizes[1:]):
        layers += [nn.Linear(a, b), nn.LeakyReLU()]
    return nn.Sequential(*layers[:-1])


class FragmentPolicy(nn.Module):
    def __init__(self, n_fragments, width=256):
        super().__init__()
        self.body = mlp([n_fragments, width, width, width])
        self.forward_head = nn.Linear(width, n_fragments)
        self.log_z = nn.Linear(1, 1)

    def forward(self, state):
        return self.forward_head(self.body(state)).log_softmax(-1)


class BindingProxy(nn.Module):
    """Docking score surrogate, one graph readout per molecule."""

    def __init__(self, n_fragments, width=512):
        super().__init__()
        self.net = mlp([n_fragments, width, width, width, 1])

    def forward(self, state):
        return self.net(state).squeeze(-1)
