import torch
import torch.nn as nn
import torch.nn.functional as F


class Residual(nn.Module):
    def __init__(self, ch):
        super().__init__()
        self.a = nn.Conv2d(ch, ch, 3, padding=1)
        self.b = nn.Conv2d(ch, ch, 3, padding=1)

    def forward(self, x):
        return F.relu(x + self.b(F.relu(self.a(x))))


class HexModel(nn.Module):
    """Learned model: representation h, dynamics g, prediction f."""

    def __init__(self, size=13, ch=160, depth=3):
        super().__init__()
        self.size = size
        self.h = nn.Sequential(nn.Conv2d(3, ch, 3, padding=1), *[Residual(ch) for _ in range(depth)])
        self.g = nn.Sequential(nn.Conv2d(ch + 1, ch, 3, padding=1), *[Residual(ch) for _ in range(depth)])
        self.policy = nn.Sequential(nn.Conv2d(ch, 2, 1), nn.Flatten(), nn.Linear(2 * size * size, size * size))
        self.value = nn.Sequential(nn.Conv2d(ch, 1, 1), nn.Flatten(), nn.Linear(size * size, 1), nn.Tanh())

    def represent(self, board):
        return self.h(board)

    def advance(self, hidden, actions):
        plane = torch.zeros(len(actions), 1, self.size * self.size, device=hidden.device)
        plane[torch.arange(len(actions)), 0, actions] = 1.0
        plane = plane.view(-1, 1, self.size, self.size)
        return self.g(torch.cat([hidden, plane], 1))

    def predict(self, hidden):
        return self.policy(hidden).softmax(-1), self.value(hidden).squeeze(-1)
