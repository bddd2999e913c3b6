"""PPO on a toy problem: a rollout is collected tensor by tensor, used for four passes and then cleared."""

import sys

import torch
from torch import nn

import pytorch_alloctrace as alloctrace


class Rollout:
    FIELDS = ("states", "actions", "log_probs", "rewards")

    def __init__(self):
        self.clear()

    def clear(self):
        for name in self.FIELDS:
            setattr(self, name, [])

    def add(self, **values):
        for name, value in values.items():
            getattr(self, name).append(value)

    def tensors(self):
        return [torch.cat(getattr(self, name)) for name in self.FIELDS]


class Actor(nn.Module):
    def __init__(self):
        super().__init__()
        self.mean = nn.Sequential(nn.Linear(24, 64), nn.Tanh(), nn.Linear(64, 6))
        self.log_std = nn.Parameter(torch.zeros(6))

    def forward(self, states):
        return self.mean(states)

    def act(self, states):
        mean = self(states)
        action = mean + self.log_std.exp() * torch.randn_like(mean)
        return action, self.log_prob(states, action)

    def log_prob(self, states, actions):
        scaled = (actions - self(states)) / self.log_std.exp()
        return (-0.5 * scaled.square() - self.log_std).sum(dim=1)


def main():
    device = sys.argv[1]
    torch.manual_seed(13)
    torch.set_num_threads(1)
    actor = Actor().to(device)
    optimizer = torch.optim.Adam(actor.parameters(), lr=3e-4)
    rollout = Rollout()
    state = torch.randn(16, 24, device=device)
    for _update in range(40):
        for _ in range(12):
            with torch.no_grad():
                action, log_prob = actor.act(state)
            reward = -action.square().sum(dim=1)
            rollout.add(states=state, actions=action, log_probs=log_prob, rewards=reward)
            state = 0.9 * state + 0.1 * torch.randn_like(state)
        states, actions, old, rewards = rollout.tensors()
        advantage = (rewards - rewards.mean()) / (rewards.std() + 1e-6)
        for _ in range(4):
            ratio = (actor.log_prob(states, actions) - old).exp()
            loss = -torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        rollout.clear()
        alloctrace.step()
    print("log std:", actor.log_std.mean().item())


if __name__ == "__main__":
    main()
