"""Q-learning on a toy environment whose replay memory is a plain list.

Old transitions are never dropped: the memory grows with every step of the environment.
"""

import random
import sys

import torch
from torch import nn


class Environment:
    """A signal that drifts with the pushes it gets; pushing upwards is rewarded."""

    def __init__(self, device, size=256):
        self.device = device
        self.size = size
        self.state = torch.zeros(size, device=device)

    def step(self, action):
        push = 0.1 if action else -0.1
        self.state = self.state * 0.95 + push + 0.05 * torch.randn(self.size, device=self.device)  # LEAK
        return self.state, 1.0 if action else 0.0


class Agent:
    def __init__(self, device):
        self.q = nn.Sequential(nn.Linear(256, 64), nn.ReLU(), nn.Linear(64, 2)).to(device)
        self.optimizer = torch.optim.RMSprop(self.q.parameters(), lr=1e-3)
        self.memory = []
        self.rng = random.Random(0)

    def remember(self, state, action, reward, following):
        self.memory.append((state, action, reward, following))  # LEAK

    def learn(self, batch_size=32):
        if len(self.memory) < batch_size:
            return
        picks = self.rng.sample(self.memory, batch_size)
        states = torch.stack([p[0] for p in picks])
        following = torch.stack([p[3] for p in picks])
        rewards = torch.tensor([p[2] for p in picks], device=states.device)
        actions = torch.tensor([p[1] for p in picks], device=states.device)
        with torch.no_grad():
            target = rewards + 0.9 * self.q(following).max(dim=1).values
        value = self.q(states).gather(1, actions[:, None]).squeeze(1)
        loss = nn.functional.smooth_l1_loss(value, target)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()


def main():
    device = sys.argv[1]
    torch.manual_seed(0)
    torch.set_num_threads(1)
    env, agent = Environment(device), Agent(device)
    rng = random.Random(1)
    state = env.state
    for _ in range(600):
        action = rng.randrange(2)
        following, reward = env.step(action)  # LEAK
        agent.remember(state, action, reward, following)
        state = following
        agent.learn()
    print("transitions remembered:", len(agent.memory))


main()
