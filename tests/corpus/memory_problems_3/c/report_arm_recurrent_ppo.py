"""Recurrent PPO for a seven-joint arm that reaches for targets (vectorised environment)."""
from collections import defaultdict

import torch
from torch import nn
from torch.distributions import Normal

DEVICE = torch.device("cuda")


class ArmBatch:
    """Many copies of the arm, stepped together on the host."""

    def __init__(self, copies, joints=7, limit=120):
        self.copies, self.joints, self.limit = copies, joints, limit
        self.angles = torch.zeros(copies, joints)
        self.goal = torch.randn(copies, 3)
        self.age = torch.randint(0, limit, (copies,))

    @property
    def observation_size(self):
        return 2 * self.joints + 3

    def observe(self):
        return torch.cat([self.angles.sin(), self.angles.cos(), self.goal], dim=1)

    def step(self, action):
        self.angles = self.angles + 0.05 * torch.nan_to_num(action).clamp(-1, 1)
        reach = torch.stack([self.angles.sin().sum(1), self.angles.cos().sum(1), self.angles.mean(1)], dim=1)
        reward = -(reach - self.goal).norm(dim=1)
        self.age += 1
        done = self.age >= self.limit
        self.age[done] = 0
        self.angles[done] = 0
        return self.observe(), reward, done.float()


class RecurrentPolicy(nn.Module):
    def __init__(self, observation_size, actions, hidden=512):
        super().__init__()
        self.hidden = hidden
        self.encoder = nn.Sequential(nn.Linear(observation_size, 256), nn.ELU(), nn.Linear(256, hidden), nn.ELU())
        self.core = nn.LSTMCell(hidden, hidden)
        self.mean = nn.Linear(hidden, actions)
        self.log_std = nn.Parameter(torch.zeros(actions))
        self.value = nn.Linear(hidden, 1)

    def forward(self, observation, state):
        h, c = self.core(self.encoder(observation), state)
        return self.mean(h), self.log_std.exp(), self.value(h).squeeze(1), (h, c)


class Experience:
    """Ring of rollout segments; the recurrent state lives on between segments."""

    def __init__(self, copies, horizon, observation_size, actions, hidden):
        self.horizon = horizon
        self.observations = torch.zeros(horizon, copies, observation_size, device=DEVICE)
        self.actions = torch.zeros(horizon, copies, actions, device=DEVICE)
        self.logprobs = torch.zeros(horizon, copies, device=DEVICE)
        self.values = torch.zeros(horizon, copies, device=DEVICE)
        self.rewards = torch.zeros(horizon, copies, device=DEVICE)
        self.dones = torch.zeros(horizon, copies, device=DEVICE)
        self.lstm_h = torch.zeros(copies, hidden, device=DEVICE)
        self.lstm_c = torch.zeros(copies, hidden, device=DEVICE)
        self.ptr = 0

    def get_lstm_state(self):
        return self.lstm_h, self.lstm_c

    def set_lstm_state(self, state):
        self.lstm_h, self.lstm_c = state

    def store(self, observation, action, logprob, value, reward, done):
        slot = self.ptr
        self.observations[slot] = observation
        self.actions[slot] = action
        self.logprobs[slot] = logprob.detach()
        self.values[slot] = value.detach()
        self.rewards[slot] = reward.to(DEVICE)
        self.dones[slot] = done.to(DEVICE)
        self.ptr = (self.ptr + 1) % self.horizon


def advantages(experience, gamma=0.99, lam=0.95):
    result = torch.zeros_like(experience.rewards)
    running = torch.zeros_like(experience.rewards[0])
    for t in reversed(range(experience.horizon - 1)):
        alive = 1.0 - experience.dones[t]
        delta = experience.rewards[t] + gamma * experience.values[t + 1] * alive - experience.values[t]
        running = delta + gamma * lam * alive * running
        result[t] = running
    return result


def rollout(env, policy, experience, stats):
    observation = env.observe().to(DEVICE)
    for _ in range(experience.horizon):
        mean, std, value, state = policy(observation, experience.get_lstm_state())
        experience.set_lstm_state(state)
        distribution = Normal(mean, std, validate_args=False)
        action = (mean + std * torch.randn_like(mean)).detach()
        following, reward, done = env.step(action.cpu())
        experience.store(observation, action, distribution.log_prob(action).sum(1), value, reward, done)
        stats["reward"].append(reward.mean().item())
        observation = following.to(DEVICE)


def update(policy, optimizer, experience, clip=0.2):
    gains = advantages(experience)
    h = torch.zeros_like(experience.lstm_h)
    state = (h, h)
    loss = 0.0
    for t in range(experience.horizon):
        mean, std, value, state = policy(experience.observations[t], state)
        distribution = Normal(mean, std, validate_args=False)
        ratio = (distribution.log_prob(experience.actions[t]).sum(1) - experience.logprobs[t]).exp()
        surrogate = torch.min(ratio * gains[t], ratio.clamp(1 - clip, 1 + clip) * gains[t])
        loss = loss - surrogate.mean() + 0.5 * (value - gains[t] - experience.values[t]).square().mean()
    optimizer.zero_grad()
    (loss / experience.horizon).backward()
    optimizer.step()


def main(updates=30, copies=256, horizon=24):
    torch.manual_seed(0)
    env = ArmBatch(copies)
    policy = RecurrentPolicy(env.observation_size, env.joints).to(DEVICE)
    optimizer = torch.optim.Adam(policy.parameters(), lr=3e-4)
    experience = Experience(copies, horizon, env.observation_size, env.joints, policy.hidden)
    stats = defaultdict(list)
    for number in range(updates):
        rollout(env, policy, experience, stats)
        update(policy, optimizer, experience)
        if number % 5 == 0:
            print(f"update {number}: reward {stats['reward'][-1]:.3f}, {torch.cuda.memory_allocated() >> 20} MiB")
    print("max allocated", torch.cuda.max_memory_allocated() // 2**20, "MiB")


if __name__ == "__main__":
    main()
