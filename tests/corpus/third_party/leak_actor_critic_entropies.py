"""An actor-critic agent; rewards and log-probabilities are cleared after each episode.

The entropies, added for an experiment, are collected as well and forgotten when the rest is cleared.
"""

import sys

import torch
from torch import nn
from torch.distributions import Categorical

import pytorch_alloctrace as alloctrace


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(32, 128)
        self.action = nn.Linear(128, 400)
        self.value = nn.Linear(128, 1)
        self.log_probs, self.values, self.rewards, self.entropies = [], [], [], []

    def forward(self, state):
        hidden = torch.relu(self.body(state))
        return Categorical(logits=self.action(hidden), validate_args=False), self.value(hidden)  # LEAK

    def act(self, state):
        distribution, value = self(state)
        action = distribution.sample()  # LEAK
        self.log_probs.append(distribution.log_prob(action))
        self.values.append(value.squeeze(-1))
        self.entropies.append(distribution.entropy())  # LEAK
        return action

    def finish_episode(self):
        returns, total = [], torch.zeros_like(self.rewards[0])
        for reward in reversed(self.rewards):
            total = reward + 0.95 * total
            returns.insert(0, total)
        returns, values = torch.stack(returns), torch.stack(self.values)
        advantage = returns - values.detach()
        loss = -(torch.stack(self.log_probs) * advantage).mean() + nn.functional.mse_loss(values, returns)
        self.log_probs.clear()
        self.values.clear()
        self.rewards.clear()
        return loss


def main():
    device = sys.argv[1]
    torch.manual_seed(0)
    torch.set_num_threads(1)
    policy = Policy().to(device)
    optimizer = torch.optim.Adam(policy.parameters(), lr=1e-3)
    for _episode in range(90):
        state = torch.randn(8, 32, device=device)
        for _ in range(6):
            action = policy.act(state)
            policy.rewards.append((action == 0).float())
            state = 0.9 * state + 0.1 * torch.randn_like(state)
        loss = policy.finish_episode()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        alloctrace.step()
    print("last loss:", loss.item())


if __name__ == "__main__":
    main()
