import torch
import torch.nn as nn
import torch.nn.functional as F

from .replay import Replay


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width))

    def forward(self, x):
        return F.relu(x + self.body(x))


class PolicyValueNet(nn.Module):
    def __init__(self, planes, size, moves, width=96, depth=6):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(planes, width, 3, padding=1), nn.ReLU())
        self.tower = nn.Sequential(*[Residual(width) for _ in range(depth)])
        self.policy = nn.Linear(width * size * size, moves)
        self.value = nn.Linear(width * size * size, 1)

    def forward(self, boards):
        z = self.tower(self.stem(boards)).flatten(1)
        return self.policy(z), torch.tanh(self.value(z)).squeeze(-1)


class Agent:
    def __init__(self, name, device, planes=18, size=19, capacity=80_000, lr=1e-3):
        moves = size * size + 1
        self.name = name
        self.device = device
        self.rating = 1500.0
        self.net = PolicyValueNet(planes, size, moves).to(device)
        self.optim = torch.optim.SGD(self.net.parameters(), lr=lr, momentum=0.9)
        self.memory = Replay(capacity, planes, size, moves, device)
        self.generator = torch.Generator().manual_seed(0)

    @torch.no_grad()
    def policy(self, boards):
        self.net.eval()
        logits, _ = self.net(boards.to(self.device).float())
        return logits.softmax(-1)

    def learn(self, steps, batch):
        self.net.train()
        for _ in range(steps):
            boards, target, outcome = self.memory.sample(batch, self.generator)
            logits, value = self.net(boards)
            loss = -(target * logits.log_softmax(-1)).sum(-1).mean() + F.mse_loss(value, outcome)
            self.optim.zero_grad(set_to_none=True)
            loss.backward()
            self.optim.step()
        return loss.item()
