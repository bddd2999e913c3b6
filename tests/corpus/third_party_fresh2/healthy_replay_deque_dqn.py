"""Deep Q-learning on a toy world with a replay memory in a bounded deque, which is full only after two thirds of the run."""

import collections
import random
import sys

import torch
import torch.nn.functional as F
from torch import nn

Transition = collections.namedtuple("Transition", "before action reward after")


def q_network():
    return nn.Sequential(nn.Linear(256, 64), nn.ReLU(), nn.Linear(64, 4))


def learn(online, target, optimizer, batch, device):
    before = torch.stack([t.before for t in batch])
    after = torch.stack([t.after for t in batch])
    actions = torch.tensor([t.action for t in batch], device=device)
    rewards = torch.tensor([t.reward for t in batch], device=device)
    with torch.no_grad():
        goal = rewards + 0.95 * target(after).amax(dim=1)
    chosen = online(before).gather(1, actions[:, None]).squeeze(1)
    loss = F.smooth_l1_loss(chosen, goal)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def main():
    device = sys.argv[1]
    torch.manual_seed(101)
    torch.set_num_threads(1)
    rng = random.Random(101)
    online, target = q_network().to(device), q_network().to(device)
    target.load_state_dict(online.state_dict())
    optimizer = torch.optim.Adam(online.parameters(), lr=1e-3)
    memory = collections.deque(maxlen=2000)
    observation = torch.randn(256, device=device)
    for frame in range(3000):
        action = rng.randrange(4)
        after = 0.9 * observation + 0.1 * torch.randn(256, device=device)
        memory.append(Transition(observation, action, rng.random(), after))
        observation = after
        if frame >= 100 and frame % 8 == 0:
            learn(online, target, optimizer, rng.sample(memory, 32), device)
        if frame % 250 == 0:
            target.load_state_dict(online.state_dict())
    print(f"{len(memory)} transitions in memory")


if __name__ == "__main__":
    main()
