"""Healthy: a DQN agent whose replay buffer on the GPU fills up and then overwrites its oldest transitions.

Why it may look like a leak: during 3/5 of the run each step adds transitions that are kept.
Why it is none: the buffer is a deque of bounded length (Config.capacity); afterwards memory is flat.
"""
import random
from collections import deque, namedtuple
from dataclasses import dataclass

import torch
from torch import nn

Transition = namedtuple("Transition", "state action reward next_state done")


@dataclass
class Config:
    environments: int = 16
    frames: tuple = (4, 84, 84)
    actions: int = 6
    capacity: int = 3840
    batch_size: int = 32
    steps: int = 400
    learn_start: int = 20
    learn_every: int = 2
    target_every: int = 50
    discount: float = 0.99


class QNetwork(nn.Module):
    def __init__(self, frames, actions):
        super().__init__()
        self.convolutions = nn.Sequential(
            nn.Conv2d(frames[0], 16, 8, stride=4), nn.ReLU(), nn.Conv2d(16, 32, 4, stride=2), nn.ReLU(), nn.Flatten()
        )
        self.value = nn.Sequential(nn.Linear(32 * 9 * 9, 128), nn.ReLU(), nn.Linear(128, actions))

    def forward(self, states):
        return self.value(self.convolutions(states.float() / 255.0))


class ReplayMemory:
    def __init__(self, capacity, seed=0):
        self.transitions = deque(maxlen=capacity)
        self.random = random.Random(seed)

    def __len__(self):
        return len(self.transitions)

    def push(self, *values):
        self.transitions.append(Transition(*values))

    def sample(self, count):
        return Transition(*(torch.stack(column) for column in zip(*self.random.sample(self.transitions, count))))


class VectorEnvironment:
    """Emulators whose screens are copied to the device."""

    def __init__(self, config, device):
        self.config = config
        self.device = device

    def observe(self):
        shape = (self.config.environments, *self.config.frames)
        return torch.randint(0, 256, shape, dtype=torch.uint8).to(self.device)

    def step(self, actions):
        rewards = torch.rand(len(actions), device=self.device)
        done = torch.zeros(len(actions), device=self.device)
        return self.observe(), rewards, done


class Agent:
    def __init__(self, config, device):
        self.config = config
        self.online = QNetwork(config.frames, config.actions).to(device)
        self.target = QNetwork(config.frames, config.actions).to(device).requires_grad_(False)
        self.target.load_state_dict(self.online.state_dict())
        self.optimizer = torch.optim.Adam(self.online.parameters(), lr=1e-4)
        self.memory = ReplayMemory(config.capacity)

    @torch.no_grad()
    def act(self, states, epsilon):
        greedy = self.online(states).argmax(dim=1)
        if random.random() < epsilon:
            return torch.randint_like(greedy, self.config.actions)
        return greedy

    def remember(self, states, actions, rewards, next_states, done):
        for values in zip(states, actions, rewards, next_states, done):
            self.memory.push(*(value.clone() for value in values))

    def learn(self):
        batch = self.memory.sample(self.config.batch_size)
        with torch.no_grad():
            bootstrap = self.target(batch.next_state).amax(dim=1)
            goal = batch.reward + self.config.discount * (1.0 - batch.done) * bootstrap
        chosen = self.online(batch.state).gather(1, batch.action[:, None]).squeeze(1)
        loss = nn.functional.smooth_l1_loss(chosen, goal)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()


def main():
    torch.manual_seed(0)
    random.seed(0)
    config, device = Config(), torch.device("cuda")
    environment, agent = VectorEnvironment(config, device), Agent(config, device)
    states, loss = environment.observe(), 0.0
    for step in range(1, config.steps + 1):
        actions = agent.act(states, epsilon=max(0.05, 1.0 - step / 200))
        next_states, rewards, done = environment.step(actions)
        agent.remember(states, actions, rewards, next_states, done)
        states = next_states
        if step >= config.learn_start and step % config.learn_every == 0:
            loss = agent.learn()
        if step % config.target_every == 0:
            agent.target.load_state_dict(agent.online.state_dict())
            print(f"step {step} memory {len(agent.memory)} loss {loss:.4f} "
                  f"{torch.cuda.memory_allocated() / 2**20:.0f} MiB")
    print("max allocated", torch.cuda.max_memory_allocated() // 2**20, "MiB")


if __name__ == "__main__":
    main()
