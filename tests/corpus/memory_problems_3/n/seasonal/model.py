import torch
import torch.nn.functional as F
from torch import nn


class SphereConv(nn.Module):
    def __init__(self, cin, cout, stride=1):
        super().__init__()
        self.conv = nn.Conv2d(cin, cout, 3, stride=stride)

    def forward(self, x):
        x = F.pad(x, (1, 1, 0, 0), mode="circular")
        x = F.pad(x, (0, 0, 1, 1), mode="replicate")
        return F.silu(self.conv(x))


class StochasticStepper(nn.Module):
    """Advances the state by one week, with noise injected at the bottleneck."""

    def __init__(self, variables=4, width=32, noise=8):
        super().__init__()
        self.noise = noise
        self.inp = SphereConv(variables, width)
        self.down = SphereConv(width, 2 * width, stride=2)
        self.mid = SphereConv(2 * width + noise, 2 * width)
        self.up = nn.Conv2d(2 * width, width, 1)
        self.out = nn.Conv2d(2 * width, variables, 1)

    def forward(self, state):
        a = self.inp(state)
        b = self.down(a)
        z = torch.randn(b.shape[0], self.noise, *b.shape[2:], device=b.device)
        b = self.mid(torch.cat([b, z], 1))
        b = F.interpolate(self.up(b), size=a.shape[2:], mode="bilinear")
        return state + self.out(torch.cat([a, b], 1))

    @torch.no_grad()
    def rollout(self, state, members, leads):
        current = state.repeat_interleave(members, dim=0)
        for _ in range(leads):
            current = self(current)
        return current.view(state.shape[0], members, *state.shape[1:]).transpose(0, 1)
