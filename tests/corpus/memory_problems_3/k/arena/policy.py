"""Actor-critic over a stack of board planes."""
import torch.nn as nn


class BoardPolicy(nn.Module):
    def __init__(self, planes=8, board=11, width=512, actions=48):
        super().__init__()
        self.trunk = nn.Sequential(
            nn.Conv2d(planes, 64, 3, padding=1), nn.ReLU(),
            nn.Conv2d(64, 64, 3, padding=1), nn.ReLU(), nn.Flatten(),
            nn.Linear(64 * board * board, width), nn.ReLU(),
            nn.Linear(width, 2 * width), nn.ReLU(),
        )
        self.move = nn.Linear(2 * width, actions)
        self.value = nn.Linear(2 * width, 1)
        self.outputs = {"move": self.move_logits, "value": self.state_value}

    def move_logits(self, hidden):
        return self.move(hidden)

    def state_value(self, hidden):
        return self.value(hidden).squeeze(-1)

    def forward(self, planes, wanted=("move", "value")):
        hidden = self.trunk(planes)
        return [self.outputs[name](hidden) for name in wanted]
