"""Deep Q-learning on a synthetic Pong. The replay memory lives on the GPU because the frames are used again at once."""
import random
from collections import deque, namedtuple

import torch
import torch.nn as nn
import torch.nn.functional as F

Transition = namedtuple("Transition", "state action reward next_state done")
CAPACITY = 1500
WARMUP = 200
STEPS = 2400
TRAIN_EVERY = 8
TARGET_EVERY = 400


class Environment:
    def __init__(self, seed):
        self.rng = random.Random(seed)
        self.t = 0

    def reset(self):
        self.t = 0
        return self.frame()

    def frame(self):
        f = torch.zeros(4, 84, 84)
        f[:, self.t % 84, :] = 1.0
        return f

    def step(self, action):
        self.t += 1
        done = self.t >= 250 or self.rng.random() < 0.002
        return self.frame(), self.rng.choice([-1.0, 0.0, 0.0, 1.0]), done


class QNetwork(nn.Module):
    def __init__(self, actions=6):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(4, 32, 8, stride=4), nn.ReLU(), nn.Conv2d(32, 64, 4, stride=2), nn.ReLU(),
            nn.Conv2d(64, 64, 3), nn.ReLU(), nn.Flatten())
        self.head = nn.Sequential(nn.Linear(3136, 512), nn.ReLU(), nn.Linear(512, actions))

    def forward(self, x):
        return self.head(self.features(x))


class Agent:
    def __init__(self, device):
        self.device = device
        self.online, self.target = QNetwork().to(device), QNetwork().to(device)
        self.target.load_state_dict(self.online.state_dict())
        self.target.requires_grad_(False)
        self.memory = deque(maxlen=CAPACITY)
        self.optimizer = torch.optim.Adam(self.online.parameters(), lr=1e-4)

    def act(self, state, epsilon):
        if random.random() < epsilon:
            return random.randrange(6)
        with torch.no_grad():
            return int(self.online(state.unsqueeze(0)).argmax().item()) % 6

    def remember(self, *args):
        self.memory.append(Transition(*args))

    def learn(self, batch=32, gamma=0.99):
        rows = random.sample(self.memory, batch)
        state = torch.stack([r.state for r in rows])
        following = torch.stack([r.next_state for r in rows])
        action = torch.tensor([[r.action] for r in rows], device=self.device)
        reward = torch.tensor([r.reward for r in rows], device=self.device)
        alive = torch.tensor([0.0 if r.done else 1.0 for r in rows], device=self.device)
        q = self.online(state).gather(1, action).squeeze(1)
        with torch.no_grad():
            expected = reward + gamma * alive * self.target(following).max(dim=1).values
        loss = F.smooth_l1_loss(q, expected)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()


def main():
    random.seed(3)
    device = torch.device("cuda")
    env, agent = Environment(3), Agent(device)
    state = env.reset().to(device)
    episode, losses = 0, deque(maxlen=50)
    for step in range(STEPS):
        action = agent.act(state, epsilon=max(0.1, 1.0 - step / 1500))
        frame, reward, done = env.step(action)
        following = frame.to(device)
        agent.remember(state, action, reward, following, done)
        state = env.reset().to(device) if done else following
        episode += done
        if step > WARMUP and step % TRAIN_EVERY == 0:
            losses.append(agent.learn())
        if step % TARGET_EVERY == 0:
            agent.target.load_state_dict(agent.online.state_dict())
            print(f"step {step} episode {episode} memory {len(agent.memory)} loss {sum(losses) / max(1, len(losses)):.4f}")


if __name__ == "__main__":
    main()
