"""PPO: each iteration collects a rollout in lists, learns from it for three epochs and clears it; the horizon doubles twice during training."""

import collections
import sys

import torch
from torch import nn
from torch.distributions import Categorical


class Actor(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(32, 64), nn.Tanh())
        self.policy = nn.Linear(64, 5)
        self.value = nn.Linear(64, 1)

    def forward(self, observations):
        hidden = self.body(observations)
        return Categorical(logits=self.policy(hidden), validate_args=False), self.value(hidden).squeeze(-1)


class Rollout(collections.defaultdict):
    def __init__(self):
        super().__init__(list)

    def add(self, **items):
        for name, item in items.items():
            self[name].append(item)

    def stacked(self):
        return {name: torch.stack(items) for name, items in self.items()}


@torch.no_grad()
def collect(actor, observation, horizon, rollout):
    for _ in range(horizon):
        policy, value = actor(observation)
        action = torch.randint(0, 5, value.shape, device=value.device)
        reward = torch.rand_like(value)
        rollout.add(observation=observation, action=action, value=value, reward=reward, old=policy.log_prob(action))
        observation = 0.8 * observation + 0.2 * torch.randn_like(observation)
    return observation


def learn(actor, optimizer, data):
    advantage = data["reward"] - data["value"]
    for _ in range(3):
        policy, value = actor(data["observation"])
        ratio = (policy.log_prob(data["action"]) - data["old"]).exp()
        surrogate = torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()
        loss = (value - data["reward"]).square().mean() - surrogate - 0.01 * policy.entropy().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def main():
    device = sys.argv[1]
    torch.manual_seed(227)
    torch.set_num_threads(1)
    actor = Actor().to(device)
    optimizer = torch.optim.Adam(actor.parameters(), lr=3e-4)
    observation = torch.randn(16, 32, device=device)
    rollout = Rollout()
    for iteration in range(60):
        horizon = 12 * 2 ** (iteration // 20)
        observation = collect(actor, observation, horizon, rollout)
        learn(actor, optimizer, rollout.stacked())
        rollout.clear()
    print(f"last horizon {horizon}")


if __name__ == "__main__":
    main()
