"""Q-learning with a replay memory of limited length that is full after about two thirds of the run."""

import random
import sys
from collections import deque, namedtuple

import torch
from torch import nn

Transition = namedtuple("Transition", "state action reward following")


class ReplayMemory:
    def __init__(self, capacity):
        self.buffer = deque(maxlen=capacity)
        self.rng = random.Random(3)

    def push(self, *values):
        self.buffer.append(Transition(*values))

    def sample(self, size):
        return Transition(*zip(*self.rng.sample(self.buffer, size), strict=True))

    def __len__(self):
        return len(self.buffer)


def optimize(q, target, memory, optimizer, size=24):
    if len(memory) < size:
        return
    batch = memory.sample(size)
    states, following = torch.stack(batch.state), torch.stack(batch.following)
    actions = torch.tensor(batch.action, device=states.device)
    value = q(states).gather(1, actions[:, None]).squeeze(1)
    with torch.no_grad():
        goal = torch.stack(batch.reward) + 0.95 * target(following).amax(dim=1)
    loss = nn.functional.smooth_l1_loss(value, goal)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def main():
    device = sys.argv[1]
    torch.manual_seed(3)
    torch.set_num_threads(1)
    rng = random.Random(3)
    q = nn.Sequential(nn.Linear(400, 48), nn.ReLU(), nn.Linear(48, 3)).to(device)
    target = nn.Sequential(nn.Linear(400, 48), nn.ReLU(), nn.Linear(48, 3)).to(device)
    target.load_state_dict(q.state_dict())
    optimizer = torch.optim.Adam(q.parameters(), lr=1e-3)
    memory = ReplayMemory(500)
    state = torch.zeros(400, device=device)
    for step in range(750):
        action = rng.randrange(3)
        following = 0.9 * state + (action - 1) * 0.1 + 0.1 * torch.randn(400, device=device)
        memory.push(state, action, -following.square().mean(), following)
        state = following
        optimize(q, target, memory, optimizer)
        if step % 100 == 0:
            target.load_state_dict(q.state_dict())
    print(len(memory), "transitions")


if __name__ == "__main__":
    main()
