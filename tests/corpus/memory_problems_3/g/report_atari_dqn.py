"""DQN on a vector of pixel environments."""
import random
from collections import deque
from typing import NamedTuple

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

NUM_ENVS = 32
FRAME_SKIP_STACK = 4
CAPACITY = 1400
LEARN_START = 100
TRAIN_EVERY = 4
TARGET_EVERY = 200
TOTAL_STEPS = 1500
GAMMA = 0.99


class Transition(NamedTuple):
    state: torch.Tensor
    action: torch.Tensor
    reward: torch.Tensor
    done: torch.Tensor
    next_state: torch.Tensor


class PaddleVecEnv:
    """A ball and a paddle drawn into 84 x 84 grey frames."""

    def __init__(self, n, seed=0):
        self.n = n
        self.rng = np.random.default_rng(seed)
        self.num_actions = 3

    def reset(self):
        self.ball = self.rng.integers(4, 80, size=(self.n, 2))
        self.vel = self.rng.choice([-2, 2], size=(self.n, 2))
        self.paddle = np.full(self.n, 42)
        return self.draw()

    def draw(self):
        frames = np.zeros((self.n, 84, 84), dtype=np.uint8)
        rows = np.arange(self.n)
        frames[rows, self.ball[:, 0], self.ball[:, 1]] = 255
        frames[rows, 82, self.paddle] = 200
        return frames

    def step(self, action):
        self.paddle = np.clip(self.paddle + (action - 1) * 3, 2, 81)
        self.ball = self.ball + self.vel
        out = (self.ball < 1) | (self.ball > 81)
        self.vel = np.where(out, -self.vel, self.vel)
        self.ball = np.clip(self.ball, 1, 81)
        hit = (self.ball[:, 0] >= 80) & (np.abs(self.ball[:, 1] - self.paddle) < 5)
        miss = (self.ball[:, 0] >= 80) & ~hit
        return self.draw(), hit.astype(np.float32) - miss, miss


class FrameStack:
    def __init__(self, env, k):
        self.env, self.k = env, k
        self.frames = deque(maxlen=k)
        self.num_actions = env.num_actions

    def reset(self):
        frame = self.env.reset()
        self.frames.extend([frame] * self.k)
        return np.stack(self.frames, axis=1)

    def step(self, action):
        frame, reward, done = self.env.step(action)
        self.frames.append(frame)
        return np.stack(self.frames, axis=1), reward, done


class TorchEnv:
    """Returns tensors, so that agents need no conversions."""

    def __init__(self, env, device):
        self.env, self.device = env, device
        self.num_actions = env.num_actions

    def _tensor(self, array):
        return torch.from_numpy(np.ascontiguousarray(array)).to(self.device)

    def reset(self):
        return self._tensor(self.env.reset())

    def step(self, action):
        obs, reward, done = self.env.step(action)
        return self._tensor(obs), self._tensor(reward), self._tensor(done)


class ExperienceReplayBuffer:
    def __init__(self, size):
        self.buffer = deque(maxlen=size)

    def __len__(self):
        return len(self.buffer)

    def store(self, *transition):
        self.buffer.append(Transition(*transition))

    def sample(self, n):
        picks = random.sample(self.buffer, n)
        return Transition(*(torch.cat(field) for field in zip(*picks)))


class NatureDQN(nn.Sequential):
    def __init__(self, channels, actions):
        super().__init__(
            nn.Conv2d(channels, 32, 8, stride=4), nn.ReLU(),
            nn.Conv2d(32, 64, 4, stride=2), nn.ReLU(),
            nn.Conv2d(64, 64, 3), nn.ReLU(),
            nn.Flatten(), nn.Linear(3136, 512), nn.ReLU(), nn.Linear(512, actions))

    def forward(self, x):
        return super().forward(x.float() / 255)


def act(q, state, epsilon, num_actions):
    if random.random() < epsilon:
        return np.random.randint(0, num_actions, size=NUM_ENVS)
    with torch.no_grad():
        return q(state).argmax(1).clamp(0, num_actions - 1).cpu().numpy()


def learn(q, target, optimizer, batch):
    with torch.no_grad():
        future = target(batch.next_state).max(1).values * (~batch.done)
    value = q(batch.state).gather(1, batch.action[:, None]).squeeze(1)
    loss = F.smooth_l1_loss(value, batch.reward + GAMMA * future)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def main():
    random.seed(0)
    np.random.seed(0)
    env = TorchEnv(FrameStack(PaddleVecEnv(NUM_ENVS), FRAME_SKIP_STACK), "cuda")
    q = NatureDQN(FRAME_SKIP_STACK, env.num_actions).cuda()
    target = NatureDQN(FRAME_SKIP_STACK, env.num_actions).cuda()
    target.load_state_dict(q.state_dict())
    optimizer = torch.optim.Adam(q.parameters(), lr=1e-4)
    replay = ExperienceReplayBuffer(CAPACITY)

    state = env.reset()
    for step in range(TOTAL_STEPS):
        epsilon = max(0.02, 1 - step / 800)
        action = act(q, state, epsilon, env.num_actions)
        next_state, reward, done = env.step(action)
        replay.store(state, torch.as_tensor(action).cuda(), reward, done, next_state)
        state = next_state
        if step >= LEARN_START and step % TRAIN_EVERY == 0:
            learn(q, target, optimizer, replay.sample(4))
        if step % TARGET_EVERY == 0:
            target.load_state_dict(q.state_dict())
            print(f"step {step} epsilon {epsilon:.2f} replay {len(replay) * NUM_ENVS}")


if __name__ == "__main__":
    main()
