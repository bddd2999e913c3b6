"""REINFORCE with a running baseline on a queueing network simulator."""
import argparse
import random
from collections import deque

import torch
import torch.nn as nn
from torch.distributions import Categorical


class QueueNetwork:
    """Vectorised toy model of servers with arrivals; actions pick the server to speed up."""

    def __init__(self, n_envs, n_servers, seed):
        self.rng = random.Random(seed)
        self.g = torch.Generator().manual_seed(seed)
        self.n_envs, self.n_servers = n_envs, n_servers
        self.load = torch.zeros(n_envs, n_servers)

    def reset(self):
        self.load = torch.rand(self.n_envs, self.n_servers, generator=self.g) * 5
        return self.load.clone()

    def step(self, actions):
        arrivals = torch.rand(self.n_envs, self.n_servers, generator=self.g)
        service = torch.full_like(self.load, 0.4)
        service[torch.arange(self.n_envs), actions] += 1.5
        self.load = (self.load + arrivals - service).clamp(0, 20)
        return self.load.clone(), -self.load.mean(1)


class Policy(nn.Module):
    def __init__(self, n_servers, width=128):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(n_servers, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh())
        self.logits = nn.Linear(width, n_servers)

    def forward(self, obs):
        return Categorical(logits=self.logits(self.net(obs)), validate_args=False)


class Critic(nn.Module):
    def __init__(self, n_servers, width=128):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(n_servers, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 1))

    def forward(self, obs):
        return self.net(obs).squeeze(-1)


class Agent:
    def __init__(self, n_servers, lr, momentum=0.95):
        self.policy = Policy(n_servers).cuda()
        self.critic = Critic(n_servers).cuda()
        self.opt = torch.optim.RMSprop(
            [*self.policy.parameters(), *self.critic.parameters()], lr=lr)
        self.momentum = momentum
        self.baseline = torch.zeros((), device="cuda")

    def act(self, obs):
        """Behaviour policy of the simulator runs: mostly the longest queue, sometimes any."""
        greedy = obs.argmax(1)
        other = torch.randint(0, obs.shape[1], greedy.shape)
        return torch.where(torch.rand(len(greedy)) < 0.7, greedy, other)

    def learn(self, obs, actions, returns):
        obs, actions, returns = obs.cuda(), actions.cuda(), returns.cuda()
        values = self.critic(obs)
        expected = self.critic(obs[-1]).mean()
        self.baseline = self.momentum * self.baseline + (1 - self.momentum) * expected
        advantage = returns - values.detach() - self.baseline.detach()
        dist = self.policy(obs)
        loss = -(dist.log_prob(actions) * advantage).mean() - 0.01 * dist.entropy().mean()
        loss = loss + 0.5 * (values - returns).pow(2).mean()
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        return loss.item()


def discounted(rewards, gamma):
    out, running = [], torch.zeros_like(rewards[-1])
    for r in reversed(rewards):
        running = r + gamma * running
        out.append(running)
    return torch.stack(out[::-1])


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--updates", type=int, default=150)
    ap.add_argument("--horizon", type=int, default=8)
    ap.add_argument("--envs", type=int, default=256)
    ap.add_argument("--servers", type=int, default=12)
    args = ap.parse_args()
    torch.manual_seed(0)
    env = QueueNetwork(args.envs, args.servers, seed=1)
    agent = Agent(args.servers, lr=7e-4)
    scores = deque(maxlen=20)
    for update in range(1, args.updates + 1):
        obs, seen, acts, rewards = env.reset(), [], [], []
        for _ in range(args.horizon):
            a = agent.act(obs)
            seen.append(obs)
            acts.append(a)
            obs, r = env.step(a)
            rewards.append(r)
        agent.learn(torch.stack(seen), torch.stack(acts), discounted(rewards, 0.97))
        scores.append(torch.stack(rewards).mean().item())
        if update % 50 == 0:
            print(f"update {update} reward {sum(scores) / len(scores):.2f} baseline {agent.baseline.item():.2f}")


if __name__ == "__main__":
    main()
