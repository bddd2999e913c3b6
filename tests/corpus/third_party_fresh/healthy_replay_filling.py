"""Q-learning on a pole that must be balanced; the replay memory holds 20,000 transitions and the run ends before it is full."""

import collections
import math
import random
import sys

import torch
from torch import nn

Transition = collections.namedtuple("Transition", "state action reward following done")


class Pole:
    def __init__(self, rng):
        self.rng = rng

    def reset(self):
        self.angle, self.speed, self.age = self.rng.uniform(-0.05, 0.05), 0.0, 0
        return [self.angle, self.speed, math.sin(self.angle), math.cos(self.angle)]

    def act(self, action):
        force = (-1.0, 0.0, 1.0)[action] + self.rng.gauss(0, 0.1)
        self.speed += 0.08 * (9.8 * math.sin(self.angle) + 4.0 * force)
        self.angle += 0.04 * self.speed
        self.age += 1
        done = abs(self.angle) > 0.6 or self.age >= 120
        return [self.angle, self.speed, math.sin(self.angle), math.cos(self.angle)], 1.0 - abs(self.angle), done


class Agent:
    def __init__(self, device, rng):
        self.device = device
        self.rng = rng
        self.memory = collections.deque(maxlen=20_000)
        self.online = self.network()
        self.target = self.network()
        self.target.load_state_dict(self.online.state_dict())
        self.optimizer = torch.optim.Adam(self.online.parameters(), lr=1e-3)
        self.updates = 0

    def network(self):
        return nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3)).to(self.device)

    @torch.no_grad()
    def choose(self, state, explore):
        if self.rng.random() < explore:
            return self.rng.randrange(3)
        return self.online(state).argmax().item()

    def learn(self):
        rows = self.rng.sample(self.memory, 32)
        state = torch.stack([t.state for t in rows])
        following = torch.stack([t.following for t in rows])
        action = torch.tensor([t.action for t in rows], device=self.device)
        reward = torch.tensor([t.reward for t in rows], device=self.device)
        going_on = torch.tensor([not t.done for t in rows], device=self.device)
        with torch.no_grad():
            goal = reward + 0.97 * going_on * self.target(following).max(dim=1).values
        value = self.online(state).gather(1, action.unsqueeze(1)).squeeze(1)
        loss = nn.functional.smooth_l1_loss(value, goal)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.updates += 1
        if self.updates % 100 == 0:
            self.target.load_state_dict(self.online.state_dict())


def main():
    device = sys.argv[1]
    torch.manual_seed(30)
    torch.set_num_threads(1)
    rng = random.Random(30)
    pole, agent = Pole(rng), Agent(device, rng)
    state = torch.tensor(pole.reset(), device=device)
    episodes = 0
    for step in range(4000):
        action = agent.choose(state, explore=max(0.05, 1 - step / 2000))
        numbers, reward, done = pole.act(action)
        following = torch.tensor(numbers, device=device)
        agent.memory.append(Transition(state, action, reward, following, done))
        state = following
        if done:
            episodes += 1
            state = torch.tensor(pole.reset(), device=device)
        if step >= 200 and step % 6 == 0:
            agent.learn()
    print(f"{episodes} episodes, {len(agent.memory)} transitions")


if __name__ == "__main__":
    main()
