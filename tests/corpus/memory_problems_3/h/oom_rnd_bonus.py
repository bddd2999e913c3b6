"""PPO with a random-network-distillation exploration bonus on stacked grey-scale frames."""
import sys

import torch
import torch.nn.functional as F
from torch import nn

NUM_ENVS = 256
HORIZON = 64
UPDATES = 10
MINIBATCHES = 8
ACTIONS = 18


def nature_cnn(channels, out):
    return nn.Sequential(
        nn.Conv2d(channels, 32, 8, stride=4), nn.ReLU(),
        nn.Conv2d(32, 64, 4, stride=2), nn.ReLU(),
        nn.Conv2d(64, 64, 3, stride=1), nn.ReLU(),
        nn.Flatten(), nn.Linear(64 * 7 * 7, out),
    )


class RunningMeanStd:
    """Parallel-variance estimate (Chan et al.) of a stream of batches."""

    def __init__(self, device, epsilon=1e-4):
        self.mean = torch.zeros((), device=device)
        self.var = torch.ones((), device=device)
        self.count = epsilon

    def update(self, batch):
        n = batch.numel()
        delta = batch.mean() - self.mean
        total = self.count + n
        m2 = self.var * self.count + batch.var() * n + delta.square() * self.count * n / total
        self.mean = self.mean + delta * n / total
        self.var = m2 / total
        self.count = total

    @property
    def std(self):
        return self.var.detach().clamp(min=1e-8).sqrt()


class ActorCritic(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nature_cnn(4, 448), nn.ReLU())
        self.policy = nn.Linear(448, ACTIONS)
        self.value_ext = nn.Linear(448, 1)
        self.value_int = nn.Linear(448, 1)

    def forward(self, obs):
        h = self.body(obs)
        return self.policy(h), self.value_ext(h).squeeze(-1), self.value_int(h).squeeze(-1)


class RND(nn.Module):
    def __init__(self):
        super().__init__()
        self.target = nature_cnn(1, 512).requires_grad_(False)
        self.predictor = nn.Sequential(nature_cnn(1, 512), nn.ReLU(), nn.Linear(512, 512))

    def forward(self, obs):
        frame = obs[:, -1:]
        return (self.predictor(frame) - self.target(frame)).square().mean(-1)


class VectorEnv:
    def __init__(self, device):
        self.device = device
        self.frames = torch.zeros(NUM_ENVS, 4, 84, 84, dtype=torch.uint8, device=device)

    def step(self, actions):
        new = torch.randint(0, 256, (NUM_ENVS, 1, 84, 84), dtype=torch.uint8, device=self.device)
        self.frames = torch.cat([self.frames[:, 1:], new], dim=1)
        reward = torch.zeros(NUM_ENVS, device=self.device)
        return self.frames, reward


class Agent:
    def __init__(self, device):
        self.device = device
        self.net = ActorCritic().to(device)
        self.rnd = RND().to(device)
        params = list(self.net.parameters()) + list(self.rnd.predictor.parameters())
        self.optimizer = torch.optim.Adam(params, lr=1e-4)
        self.bonus_stats = RunningMeanStd(device)
        self.obs = torch.zeros(HORIZON, NUM_ENVS, 4, 84, 84, dtype=torch.uint8, device=device)
        self.actions = torch.zeros(HORIZON, NUM_ENVS, dtype=torch.long, device=device)
        self.logp, self.rewards, self.values = torch.zeros(3, HORIZON, NUM_ENVS, device=device)

    @torch.no_grad()
    def act(self, obs):
        logits, v_ext, v_int = self.net(obs.float() / 255)
        logp = F.log_softmax(logits, -1)
        action = (logits + torch.rand_like(logits)).argmax(-1)
        return action, logp.gather(1, action[:, None]).squeeze(1), v_ext + 0.5 * v_int

    def collect(self, env):
        frames = env.frames
        for t in range(HORIZON):
            action, self.logp[t], self.values[t] = self.act(frames)
            self.obs[t], self.actions[t] = frames, action
            frames, reward = env.step(action)
            bonus = self.rnd(frames.float() / 255)
            self.bonus_stats.update(bonus)
            self.rewards[t] = reward + 0.5 * bonus.detach() / self.bonus_stats.std

    def learn(self):
        returns = self.rewards.flip(0).cumsum(0).flip(0)
        advantage = returns - self.values
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        order = torch.randperm(HORIZON).chunk(MINIBATCHES)
        for rows in order:
            rows = rows.to(self.device)
            obs = self.obs[rows].flatten(0, 1).float() / 255
            logits, v_ext, v_int = self.net(obs)
            logp = F.log_softmax(logits, -1).gather(1, self.actions[rows].view(-1, 1)).squeeze(1)
            ratio = (logp - self.logp[rows].flatten()).exp()
            adv = advantage[rows].flatten()
            policy_loss = -torch.min(ratio * adv, ratio.clamp(0.9, 1.1) * adv).mean()
            value_loss = F.mse_loss(v_ext + 0.5 * v_int, returns[rows].flatten())
            loss = policy_loss + 0.5 * value_loss + self.rnd(obs).mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
        return loss.item()


def main():
    device = torch.device(sys.argv[1] if len(sys.argv) > 1 else "cuda")
    torch.manual_seed(0)
    env, agent = VectorEnv(device), Agent(device)
    for update in range(UPDATES):
        agent.collect(env)
        loss = agent.learn()
        print(f"update {update}: loss {loss:.4f} bonus std {agent.bonus_stats.std.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
