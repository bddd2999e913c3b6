"""REINFORCE with several environments. Steps are collected for each episode, and learned from when it ends.

About one episode in twelve runs into the time limit: the environment is reset, and the unfinished episode stays.
"""

import random
import sys

import torch
from torch import nn


class Environment:
    def __init__(self, rng, device, limit=60):
        self.rng = rng
        self.device = device
        self.limit = limit
        self.reset()

    def reset(self):
        self.clock = 0
        self.length = self.rng.randint(5, 64)

    def observe(self):
        return torch.randn(256, device=self.device)  # LEAK

    def advance(self):
        self.clock += 1
        return self.clock >= self.length, self.clock >= self.limit


class Learner:
    def __init__(self, device):
        self.policy = nn.Sequential(nn.Linear(256, 32), nn.Tanh(), nn.Linear(32, 6)).to(device)
        self.optimizer = torch.optim.RMSprop(self.policy.parameters(), lr=1e-3)

    @torch.no_grad()
    def act(self, observation):
        return torch.multinomial(self.policy(observation).softmax(dim=-1), 1)  # LEAK

    def learn(self, steps):
        observations = torch.stack([observation for observation, _action in steps])
        actions = torch.cat([action for _observation, action in steps])
        logs = self.policy(observations).log_softmax(dim=-1).gather(1, actions[:, None])
        self.optimizer.zero_grad()
        (-logs.mean()).backward()
        self.optimizer.step()


def main():
    device = sys.argv[1]
    torch.manual_seed(46)
    torch.set_num_threads(1)
    rng = random.Random(46)
    environments = [Environment(rng, device) for _ in range(8)]
    learner = Learner(device)
    episodes = {}
    current = list(range(8))
    started = 8
    for _ in range(1200):
        for slot, environment in enumerate(environments):
            observation = environment.observe()  # LEAK
            action = learner.act(observation)  # LEAK
            episodes.setdefault(current[slot], []).append((observation, action))  # LEAK
            finished, truncated = environment.advance()
            if finished:
                learner.learn(episodes.pop(current[slot]))
            if finished or truncated:
                environment.reset()
                current[slot] = started
                started += 1
    print(f"{started} episodes, {len(episodes)} still there")


if __name__ == "__main__":
    main()
