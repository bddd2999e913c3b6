"""DQN on pixel observations: several environments, frame stacking, and a uniform replay buffer in host memory."""
import random

import torch
from torch import nn
from torch.nn import functional as F


class ToyBreakout:
    """Draws a ball and a paddle; good enough to exercise the pipeline."""

    actions = 4

    def __init__(self, seed):
        self.rng = random.Random(seed)
        self.reset()

    def reset(self):
        self.ball = [self.rng.randrange(84), 10]
        self.speed = [self.rng.choice((-3, 3)), 4]
        self.paddle = 40
        return self.draw()

    def draw(self):
        frame = torch.zeros(84, 84, dtype=torch.uint8)
        y, x = self.ball[1], self.ball[0]
        frame[y:y + 3, x:x + 3] = 255
        frame[80:82, self.paddle:self.paddle + 12] = 180
        return frame

    def step(self, action):
        self.paddle = max(0, min(72, self.paddle + (0, 0, -4, 4)[action]))
        for axis in (0, 1):
            self.ball[axis] += self.speed[axis]
            if not 0 <= self.ball[axis] < 81:
                self.speed[axis] = -self.speed[axis]
                self.ball[axis] = max(0, min(80, self.ball[axis]))
        done = self.rng.random() < 0.004
        return self.draw(), float(self.ball[1] > 76), done


class FrameStack:
    def __init__(self, env, size=4):
        self.env = env
        self.size = size
        self.frames = []

    def reset(self):
        self.frames = [self.env.reset()] * self.size
        return self.observation()

    def observation(self):
        return torch.stack(self.frames)

    def step(self, action):
        frame, reward, done = self.env.step(action)
        self.frames = self.frames[1:] + [frame]
        return self.observation(), reward, done


class ReplayBuffer:
    def __init__(self, capacity):
        self.capacity = capacity
        self.storage = []
        self.position = 0

    def __len__(self):
        return len(self.storage)

    def push(self, transition):
        if len(self.storage) < self.capacity:
            self.storage.append(transition)
        else:
            self.storage[self.position] = transition
            self.position = (self.position + 1) % self.capacity

    def sample(self, size):
        state, action, reward, following, done = zip(*random.sample(self.storage, size))
        return (torch.stack(state), torch.tensor(action), torch.tensor(reward), torch.stack(following),
                torch.tensor(done, dtype=torch.float32))


class QNetwork(nn.Module):
    def __init__(self, actions):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(4, 32, 8, stride=4), nn.ReLU(), nn.Conv2d(32, 64, 4, stride=2), nn.ReLU(),
            nn.Conv2d(64, 64, 3), nn.ReLU(), nn.Flatten(), nn.Linear(3136, 512), nn.ReLU(),
            nn.Linear(512, actions))

    def forward(self, frames):
        return self.net(frames.float() / 255)


class Agent:
    def __init__(self, device, gamma=0.99):
        self.device = device
        self.gamma = gamma
        self.online = QNetwork(ToyBreakout.actions).to(device)
        self.target = QNetwork(ToyBreakout.actions).to(device)
        self.sync()
        self.optimizer = torch.optim.Adam(self.online.parameters(), lr=1e-4)

    def sync(self):
        self.target.load_state_dict(self.online.state_dict())

    @torch.no_grad()
    def act(self, observations, epsilon):
        greedy = self.online(torch.stack(observations).to(self.device)).cpu().argmax(-1).tolist()
        return [random.randrange(ToyBreakout.actions) if random.random() < epsilon else a for a in greedy]

    def learn(self, batch):
        state, action, reward, following, done = (x.to(self.device) for x in batch)
        with torch.no_grad():
            target = reward + self.gamma * (1 - done) * self.target(following).amax(-1)
        value = self.online(state).gather(1, action[:, None]).squeeze(1)
        loss = F.smooth_l1_loss(value, target)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()


def train(steps=2400, workers=16, capacity=200_000):
    random.seed(0)
    agent = Agent("cuda")
    buffer = ReplayBuffer(capacity)
    envs = [FrameStack(ToyBreakout(seed)) for seed in range(workers)]
    observations = [env.reset() for env in envs]
    for step in range(steps):
        actions = agent.act(observations, epsilon=max(0.05, 1 - step / 1500))
        for i, env in enumerate(envs):
            following, reward, done = env.step(actions[i])
            buffer.push((observations[i], actions[i], reward, following, done))
            observations[i] = env.reset() if done else following
        if step >= 100 and step % 4 == 0:
            loss = agent.learn(buffer.sample(32))
        if step % 500 == 499:
            agent.sync()
            print(f"step {step + 1}: {len(buffer)} transitions, loss {loss:.3f}", flush=True)


if __name__ == "__main__":
    train()
