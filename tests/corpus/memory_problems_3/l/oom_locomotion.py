"""PPO for a legged robot from camera images, with extra replays of the moments before a fall."""
import sys
import time
from collections import deque

import numpy as np
import torch
import torch.nn as nn

STEPS, ENVS, FRAME = 24, 64, (3, 144, 144)


class CameraSim:
    """Batched simulator that renders on the device and reports falls on the host."""

    def __init__(self, envs, device, seed):
        self.envs, self.device = envs, device
        self.rng = np.random.default_rng(seed)

    def render(self):
        return torch.randint(0, 255, (self.envs, *FRAME), dtype=torch.uint8, device=self.device)

    def step(self, action):
        reward = 0.1 - 0.01 * action.pow(2).sum(-1)
        fallen = self.rng.random(self.envs) < 0.003
        return self.render(), reward, fallen


class Gaussian:
    def __init__(self, mean, log_std):
        self.mean, self.log_std = mean, log_std

    def sample(self):
        return self.mean + self.log_std.exp() * torch.randn_like(self.mean)

    def log_prob(self, action):
        z = (action - self.mean) / self.log_std.exp()
        return (-0.5 * z.pow(2) - self.log_std - 0.9189385).sum(-1)

    def entropy(self):
        return (self.log_std + 1.4189385).sum()


class Policy(nn.Module):
    def __init__(self, joints=12):
        super().__init__()
        self.vision = nn.Sequential(
            nn.Conv2d(3, 16, 8, 4), nn.ELU(), nn.Conv2d(16, 32, 4, 2), nn.ELU(),
            nn.Conv2d(32, 32, 3, 2), nn.ELU(), nn.Flatten(), nn.Linear(1568, 256), nn.ELU(),
        )
        self.mean = nn.Linear(256, joints)
        self.log_std = nn.Parameter(torch.full((joints,), -1.0))
        self.value = nn.Linear(256, 1)

    def forward(self, frames):
        h = self.vision(frames.float() / 255.0)
        return Gaussian(self.mean(h), self.log_std), self.value(h).squeeze(-1)


class Rollout:
    def __init__(self, device):
        self.frames = torch.empty(STEPS, ENVS, *FRAME, dtype=torch.uint8, device=device)
        self.actions = torch.empty(STEPS, ENVS, 12, device=device)
        self.logp = torch.empty(STEPS, ENVS, device=device)
        self.values = torch.empty(STEPS + 1, ENVS, device=device)
        self.rewards = torch.empty(STEPS, ENVS, device=device)
        self.falls = np.zeros((STEPS, ENVS), dtype=bool)

    def advantages(self, gamma=0.99, lam=0.95):
        out, last = torch.empty_like(self.rewards), 0.0
        alive = torch.from_numpy(~self.falls).to(self.rewards.device).float()
        for t in reversed(range(STEPS)):
            delta = self.rewards[t] + gamma * alive[t] * self.values[t + 1] - self.values[t]
            last = delta + gamma * lam * alive[t] * last
            out[t] = last
        return out


class FallBank:
    """The last frames before each fall; the critic is trained on them with value -1."""

    def __init__(self, capacity=4096, length=6):
        self.clips = deque(maxlen=capacity)
        self.length = length

    def collect(self, rollout):
        for t, env in zip(*np.nonzero(rollout.falls)):
            first = max(0, t + 1 - self.length)
            self.clips.append(rollout.frames[first:t + 1, env])

    def sample(self, rng, n=8):
        chosen = rng.choice(len(self.clips), size=min(n, len(self.clips)), replace=False)
        return torch.cat([self.clips[i] for i in chosen])


class Agent:
    def __init__(self, device, seed=3):
        self.device = device
        self.rng = np.random.default_rng(seed)
        self.sim = CameraSim(ENVS, device, seed)
        self.policy = Policy().to(device)
        self.optimizer = torch.optim.Adam(self.policy.parameters(), lr=3e-4, eps=1e-5)
        self.bank = FallBank()
        self.frame = self.sim.render()

    @torch.no_grad()
    def collect(self):
        rollout = Rollout(self.device)
        for t in range(STEPS):
            dist, value = self.policy(self.frame)
            action = dist.sample()
            rollout.frames[t], rollout.actions[t], rollout.values[t] = self.frame, action, value
            rollout.logp[t] = dist.log_prob(action)
            self.frame, rollout.rewards[t], rollout.falls[t] = self.sim.step(action)
        rollout.values[STEPS] = self.policy(self.frame)[1]
        self.bank.collect(rollout)
        return rollout

    def update(self, rollout, minibatches=6):
        adv = rollout.advantages().flatten()
        returns = adv + rollout.values[:-1].flatten()
        frames, actions = rollout.frames.flatten(0, 1), rollout.actions.flatten(0, 1)
        old_logp = rollout.logp.flatten()
        order = torch.from_numpy(self.rng.permutation(STEPS * ENVS)).to(self.device)
        for index in order.chunk(minibatches):
            dist, value = self.policy(frames[index])
            ratio = (dist.log_prob(actions[index]) - old_logp[index]).exp()
            a = adv[index]
            surrogate = torch.min(ratio * a, ratio.clamp(0.8, 1.2) * a).mean()
            loss = 0.5 * (value - returns[index]).pow(2).mean() - surrogate - 0.003 * dist.entropy()
            if self.bank.clips:
                loss = loss + 0.1 * (self.policy(self.bank.sample(self.rng))[1] + 1.0).pow(2).mean()
            self.optimizer.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(self.policy.parameters(), 0.5)
            self.optimizer.step()
        return loss.item()


def main():
    device = torch.device(sys.argv[1] if len(sys.argv) > 1 else "cuda")
    torch.manual_seed(3)
    agent, start = Agent(device), time.time()
    for iteration in range(36):
        loss = agent.update(agent.collect())
        if iteration % 5 == 0:
            print(f"iteration {iteration}: loss {loss:.4f}, {len(agent.bank.clips)} falls, {time.time() - start:.1f}s", flush=True)
    print("done", flush=True)


if __name__ == "__main__":
    main()
