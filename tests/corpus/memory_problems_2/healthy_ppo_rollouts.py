"""Healthy: PPO; each iteration collects rollouts of a length that varies, trains on them and clears them.

Why it may look like a leak: within an iteration the rollout storage grows with each environment step.
Why it is none: the storage is cleared after each update; log-probabilities and values are stored without graph.
"""
import random
from dataclasses import dataclass

import torch
from torch import nn


@dataclass
class Config:
    environments: int = 256
    observation: int = 1024
    actions: int = 12
    min_length: int = 16
    max_length: int = 40
    iterations: int = 12
    epochs: int = 2
    minibatches: int = 4
    clip: float = 0.2
    discount: float = 0.99
    smoothing: float = 0.95


class ActorCritic(nn.Module):
    def __init__(self, observation, actions, hidden=256):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(observation, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh())
        self.policy = nn.Linear(hidden, actions)
        self.value = nn.Linear(hidden, 1)

    def forward(self, observations):
        features = self.body(observations)
        return self.policy(features).log_softmax(dim=-1), self.value(features).squeeze(-1)


class RolloutStorage:
    FIELDS = ("observations", "actions", "log_probabilities", "values", "rewards")

    def __init__(self):
        self.clear()

    def clear(self):
        self.data = {field: [] for field in self.FIELDS}

    def add(self, **values):
        for field in self.FIELDS:
            self.data[field].append(values[field])

    def stacked(self):
        return {field: torch.stack(values) for field, values in self.data.items()}


class Ppo:
    def __init__(self, config, device):
        self.config = config
        self.device = device
        self.network = ActorCritic(config.observation, config.actions).to(device)
        self.optimizer = torch.optim.Adam(self.network.parameters(), lr=3e-4, eps=1e-5)
        self.storage = RolloutStorage()
        self.random = random.Random(0)

    @torch.no_grad()
    def collect(self):
        length = self.random.randint(self.config.min_length, self.config.max_length)
        for _ in range(length):
            observations = torch.randn(self.config.environments, self.config.observation).to(self.device)
            log_probabilities, values = self.network(observations)
            actions = (log_probabilities + torch.rand_like(log_probabilities)).argmax(dim=-1)
            chosen = log_probabilities.gather(1, actions[:, None]).squeeze(1)
            rewards = torch.rand(self.config.environments, device=self.device)
            self.storage.add(observations=observations, actions=actions, log_probabilities=chosen,
                             values=values, rewards=rewards)
        return length

    @torch.no_grad()
    def advantages(self, rewards, values):
        result = torch.zeros_like(rewards)
        running = torch.zeros_like(rewards[0])
        for t in reversed(range(len(rewards))):
            following = values[t + 1] if t + 1 < len(values) else values[t]
            delta = rewards[t] + self.config.discount * following - values[t]
            running = delta + self.config.discount * self.config.smoothing * running
            result[t] = running
        return result

    def update(self):
        rollout = self.storage.stacked()
        rollout["advantages"] = self.advantages(rollout["rewards"], rollout["values"])
        flat = {name: tensor.flatten(0, 1) for name, tensor in rollout.items()}
        count = len(flat["actions"])
        for _ in range(self.config.epochs):
            order = torch.randperm(count).to(self.device)
            for index in order.chunk(self.config.minibatches):
                log_probabilities, values = self.network(flat["observations"][index])
                chosen = log_probabilities.gather(1, flat["actions"][index][:, None]).squeeze(1)
                ratio = (chosen - flat["log_probabilities"][index]).exp()
                gain = flat["advantages"][index]
                clipped = ratio.clamp(1 - self.config.clip, 1 + self.config.clip) * gain
                policy_loss = -torch.minimum(ratio * gain, clipped).mean()
                value_loss = (values - flat["values"][index] - gain).square().mean()
                entropy = -(log_probabilities.exp() * log_probabilities).sum(dim=-1).mean()
                loss = policy_loss + 0.5 * value_loss - 0.01 * entropy
                self.optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(self.network.parameters(), 0.5)
                self.optimizer.step()
        self.storage.clear()
        return loss.item()


def main():
    torch.manual_seed(0)
    agent = Ppo(Config(), torch.device("cuda"))
    for iteration in range(agent.config.iterations):
        length = agent.collect()
        held = torch.cuda.memory_allocated() / 2**20
        loss = agent.update()
        print(f"iteration {iteration}: {length} steps, {held:.0f} MiB with the rollout, loss {loss:.4f}")
    print("max allocated", torch.cuda.max_memory_allocated() // 2**20, "MiB")


if __name__ == "__main__":
    main()
