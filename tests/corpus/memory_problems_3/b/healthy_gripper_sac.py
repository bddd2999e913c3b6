"""Soft actor-critic for a gripper: critics learn first, policy, temperature and dynamics join later."""
import copy
import random

import torch
from torch import nn
import torch.nn.functional as F

STATE, ACTION, HIDDEN = 96, 12, 1536


def mlp(inputs, outputs):
    return nn.Sequential(nn.Linear(inputs, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, HIDDEN), nn.ReLU(),
                         nn.Linear(HIDDEN, outputs))


class Agent:
    def __init__(self, device):
        self.device = device
        self.actor = mlp(STATE, 2 * ACTION).to(device)
        self.critics = nn.ModuleList(mlp(STATE + ACTION, 1) for _ in range(2)).to(device)
        self.targets = copy.deepcopy(self.critics).requires_grad_(False)
        self.dynamics = mlp(STATE + ACTION, STATE).to(device)
        self.log_alpha = torch.zeros((), device=device, requires_grad=True)
        self.optimizers = {
            "critics": torch.optim.Adam(self.critics.parameters(), lr=3e-4),
            "actor": torch.optim.Adam(self.actor.parameters(), lr=1e-4),
            "alpha": torch.optim.Adam([self.log_alpha], lr=1e-4),
            "dynamics": torch.optim.AdamW(self.dynamics.parameters(), lr=5e-4),
        }

    def act(self, state):
        mean, spread = self.actor(state).chunk(2, dim=1)
        noise = torch.randn_like(mean) * spread.clamp(-5, 2).exp()
        return torch.tanh(mean + noise), -0.5 * noise.square().sum(dim=1)

    def apply(self, name, loss):
        optimizer = self.optimizers[name]
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        return loss.item()

    def learn_critics(self, state, action, reward, following, gamma=0.98):
        with torch.no_grad():
            next_action, log_prob = self.act(following)
            both = torch.cat([following, next_action], dim=1)
            best = torch.minimum(*(t(both).squeeze(1) for t in self.targets))
            target = reward + gamma * (best - self.log_alpha.exp() * log_prob)
        pair = torch.cat([state, action], dim=1)
        loss = self.apply("critics", sum(F.mse_loss(c(pair).squeeze(1), target) for c in self.critics))
        with torch.no_grad():
            for slow, fast in zip(self.targets.parameters(), self.critics.parameters()):
                slow.lerp_(fast, 0.005)
        return loss

    def learn_actor(self, state):
        action, log_prob = self.act(state)
        value = torch.minimum(*(c(torch.cat([state, action], dim=1)).squeeze(1) for c in self.critics))
        self.apply("actor", (self.log_alpha.detach().exp() * log_prob - value).mean())
        self.apply("alpha", -(self.log_alpha.exp() * (log_prob.detach() - ACTION)).mean())

    def learn_dynamics(self, state, action, following):
        return self.apply("dynamics", F.mse_loss(self.dynamics(torch.cat([state, action], dim=1)), following))


def transitions(batch, rng, device):
    base = torch.full((batch, STATE), rng.random())
    action = torch.full((batch, ACTION), rng.uniform(-1, 1))
    reward = torch.full((batch,), rng.random())
    return [t.to(device) for t in (base, action, reward, base + 0.01)]


def main(steps=400, batch=1024):
    torch.manual_seed(0)
    rng = random.Random(0)
    device = torch.device("cuda")
    agent = Agent(device)
    for step in range(steps):
        state, action, reward, following = transitions(batch, rng, device)
        loss = agent.learn_critics(state, action, reward, following)
        if step >= 80:
            agent.learn_actor(state)
        if step >= 160 and step % 2 == 0:
            agent.learn_dynamics(state, action, following)
        if step % 40 == 0:
            print(f"step {step} critic loss {loss:.4f} {torch.cuda.memory_allocated() >> 20} MiB", flush=True)


if __name__ == "__main__":
    main()
