"""Soft actor-critic on a toy task: the critics step each time, the actor every fourth time, the temperature every tenth time."""

import sys

import torch
from torch import nn


def network(inputs, outputs, width=64):
    return nn.Sequential(nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, outputs))


class SoftActorCritic:
    def __init__(self, states, actions, device):
        self.actions = actions
        self.actor = network(states, 2 * actions).to(device)
        self.critics = nn.ModuleList([network(states + actions, 1) for _ in range(2)]).to(device)
        self.slow = nn.ModuleList([network(states + actions, 1) for _ in range(2)]).to(device).requires_grad_(False)
        self.slow.load_state_dict(self.critics.state_dict())
        self.log_alpha = torch.zeros((), device=device, requires_grad=True)
        self.actor_optimizer = torch.optim.Adam(self.actor.parameters(), lr=1e-3)
        self.critic_optimizer = torch.optim.Adam(self.critics.parameters(), lr=2e-3)
        self.alpha_optimizer = torch.optim.Adam([self.log_alpha], lr=1e-2)

    def sample(self, state):
        mean, log_std = self.actor(state).chunk(2, dim=1)
        policy = torch.distributions.Normal(mean, log_std.clamp(-4, 1).exp())
        raw = policy.rsample()
        action = raw.tanh()
        log_prob = (policy.log_prob(raw) - (1 - action.square() + 1e-6).log()).sum(dim=1)
        return action, log_prob

    def value(self, critics, state, action):
        joined = torch.cat([state, action], dim=1)
        return torch.stack([critic(joined).squeeze(1) for critic in critics])

    def train_critics(self, state, action, reward, following):
        with torch.no_grad():
            next_action, log_prob = self.sample(following)
            goal = reward + 0.95 * (self.value(self.slow, following, next_action).amin(dim=0) - self.log_alpha.exp() * log_prob)
        loss = (self.value(self.critics, state, action) - goal).square().mean()
        self.critic_optimizer.zero_grad()
        loss.backward()
        self.critic_optimizer.step()
        with torch.no_grad():
            for slow, fast in zip(self.slow.parameters(), self.critics.parameters()):
                slow.lerp_(fast, 0.01)
        return loss.item()

    def train_actor(self, state):
        action, log_prob = self.sample(state)
        loss = (self.log_alpha.exp().detach() * log_prob - self.value(self.critics, state, action).amin(dim=0)).mean()
        self.actor_optimizer.zero_grad()
        loss.backward()
        self.actor_optimizer.step()

    def train_temperature(self, state):
        with torch.no_grad():
            _, log_prob = self.sample(state)
        loss = -(self.log_alpha.exp() * (log_prob - self.actions)).mean()
        self.alpha_optimizer.zero_grad()
        loss.backward()
        self.alpha_optimizer.step()


def main():
    device = sys.argv[1]
    torch.manual_seed(33)
    torch.set_num_threads(1)
    agent = SoftActorCritic(8, 2, device)
    drift = torch.randn(2, 8, device=device) / 3
    loss = 0.0
    for step in range(400):
        state = torch.randn(64, 8, device=device)
        with torch.no_grad():
            action, _ = agent.sample(state)
        following = 0.9 * state + action @ drift
        reward = -following.square().mean(dim=1)
        loss = agent.train_critics(state, action, reward, following)
        if step % 4 == 3:
            agent.train_actor(state)
        if step % 10 == 9:
            agent.train_temperature(state)
    print(f"critic loss {loss:.4f}, temperature {agent.log_alpha.exp().item():.3f}")


if __name__ == "__main__":
    main()
