import torch
from torch import nn
import torch.nn.functional as F


class FeatureNet(nn.Module):
    """Image to features at 1/8 of the resolution."""

    def __init__(self, dim=256):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 32, 7, stride=2, padding=3), nn.ReLU(inplace=True),
            nn.Conv2d(32, 64, 3, stride=2, padding=1), nn.ReLU(inplace=True),
            nn.Conv2d(64, 128, 3, stride=2, padding=1), nn.ReLU(inplace=True),
            nn.Conv2d(128, dim, 1),
        )

    def forward(self, image):
        return self.layers(image)


class UpdateNet(nn.Module):
    def __init__(self, corr_dim, hidden=96):
        super().__init__()
        self.motion = nn.Conv2d(corr_dim + 2, hidden, 3, padding=1)
        self.gates = nn.Conv2d(2 * hidden, 2 * hidden, 3, padding=1)
        self.cand = nn.Conv2d(2 * hidden, hidden, 3, padding=1)
        self.flow = nn.Conv2d(hidden, 2, 3, padding=1)

    def forward(self, state, corr, flow):
        m = F.relu(self.motion(torch.cat([corr, flow], 1)))
        z, r = torch.sigmoid(self.gates(torch.cat([state, m], 1))).chunk(2, 1)
        q = torch.tanh(self.cand(torch.cat([r * state, m], 1)))
        state = (1 - z) * state + z * q
        return state, self.flow(state)
