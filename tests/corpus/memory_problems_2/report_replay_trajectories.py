"""Trains a policy by trajectory balance, half of each batch drawn from a replay buffer of earlier trajectories.

Report: https://github.com/recursionpharma/gflownet/pull/130 ("Fixes GPU memory overflow when using replay buffer";
        the fix detaches and sends to the CPU "every tensor getting pushed into the replay buffer")
Cause:  trajectories are stored with their log-probabilities still attached to the sampling graph, on the GPU.
Line:   self.buffer.append(trajectory)
Cure:   store {key: value.detach().cpu() for key, value in trajectory.items()} (and sample under torch.no_grad()).
"""
import random
from collections import deque
from dataclasses import dataclass

import torch
from torch import nn


@dataclass
class Config:
    capacity: int = 100000
    warmup: int = 256
    batch_size: int = 64
    replay_fraction: float = 0.5
    horizon: int = 8
    state_dim: int = 64
    actions: int = 32
    iterations: int = 80


class ReplayBuffer:
    def __init__(self, capacity, warmup, seed=0):
        self.buffer = deque(maxlen=capacity)
        self.warmup = warmup
        self.random = random.Random(seed)

    def __len__(self):
        return len(self.buffer)

    def push(self, trajectory):
        self.buffer.append(trajectory)  # CAUSE

    def sample(self, count, device):
        chosen = self.random.sample(self.buffer, count)
        return {key: torch.stack([t[key].detach().to(device) for t in chosen]) for key in chosen[0]}


class Policy(nn.Module):
    def __init__(self, config, hidden=512):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(config.state_dim, hidden), nn.GELU(), nn.Linear(hidden, hidden), nn.GELU(),
            nn.Linear(hidden, config.actions),
        )
        self.log_z = nn.Parameter(torch.zeros(()))

    def log_probabilities(self, states):
        return self.net(states).log_softmax(dim=-1)


class TrajectoryBalance:
    def __init__(self, config, device):
        self.config = config
        self.device = device
        self.policy = Policy(config).to(device)
        self.moves = torch.randn(config.actions, config.state_dim).to(device) * 0.1
        self.optimizer = torch.optim.Adam(self.policy.parameters(), lr=1e-3)
        self.replay = ReplayBuffer(config.capacity, config.warmup)

    def sample_trajectories(self, count):
        states = torch.zeros(count, self.config.state_dim, device=self.device)
        visited, chosen, log_pf = [], [], 0.0
        for _ in range(self.config.horizon):
            log_probabilities = self.policy.log_probabilities(states)
            actions = torch.argmax(log_probabilities + torch.rand_like(log_probabilities), dim=-1)
            log_pf = log_pf + log_probabilities.gather(1, actions[:, None]).squeeze(1)
            visited.append(states)
            chosen.append(actions)
            states = states + self.moves[actions]
        reward = -states.square().sum(dim=-1)
        visited, chosen = torch.stack(visited, dim=1), torch.stack(chosen, dim=1)
        return [{"states": s, "actions": a, "log_pf": p, "log_reward": r}
                for s, a, p, r in zip(visited, chosen, log_pf, reward)]

    def collate(self, trajectories):
        return {key: torch.stack([t[key].detach() for t in trajectories]) for key in trajectories[0]}

    def loss(self, batch):
        log_probabilities = self.policy.log_probabilities(batch["states"])
        log_pf = log_probabilities.gather(2, batch["actions"][..., None]).squeeze(2).sum(dim=1)
        return (self.policy.log_z + log_pf - batch["log_reward"]).square().mean()

    def iteration(self):
        fresh = self.sample_trajectories(self.config.batch_size)
        batch = self.collate(fresh)
        for trajectory in fresh:
            self.replay.push(trajectory)
        if len(self.replay) >= self.replay.warmup:
            old = self.replay.sample(int(self.config.batch_size * self.config.replay_fraction), self.device)
            batch = {key: torch.cat([batch[key], old[key]]) for key in batch}
        loss = self.loss(batch)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()


def main():
    torch.manual_seed(0)
    config = Config()
    trainer = TrajectoryBalance(config, torch.device("cuda"))
    for iteration in range(config.iterations):
        loss = trainer.iteration()
        if iteration % 20 == 0:
            print(f"iteration {iteration} loss {loss:.3f} buffer {len(trainer.replay)}")
    print("max allocated", torch.cuda.max_memory_allocated() // 2**20, "MiB")


if __name__ == "__main__":
    main()
