"""An off-policy learner with a prioritised replay memory: a ring of 3000, full after 60 % of the run."""

import random
import sys

import torch
from torch import nn


class PrioritizedReplay:
    """Transitions in a ring; a heap or a tree would be faster than the plain weights used here."""

    def __init__(self, capacity, rng):
        self.capacity = capacity
        self.rng = rng
        self.transitions = []
        self.priorities = []
        self.next = 0

    def add(self, transition):
        priority = max(self.priorities, default=1.0)
        if len(self.transitions) < self.capacity:
            self.transitions.append(transition)
            self.priorities.append(priority)
        else:
            self.transitions[self.next] = transition
            self.priorities[self.next] = priority
        self.next = (self.next + 1) % self.capacity

    def sample(self, count):
        places = self.rng.choices(range(len(self.transitions)), self.priorities, k=count)
        states, rewards = zip(*(self.transitions[place] for place in places), strict=True)
        return places, torch.stack(states), torch.tensor(rewards, device=states[0].device)

    def reprioritize(self, places):
        for place in places:
            self.priorities[place] = 0.1 + self.rng.random()


def main():
    device = sys.argv[1]
    torch.manual_seed(63)
    torch.set_num_threads(1)
    rng = random.Random(63)
    memory = PrioritizedReplay(3000, rng)
    critic = nn.Sequential(nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 1)).to(device)
    target = nn.Sequential(nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 1)).to(device)
    optimizer = torch.optim.Adam(critic.parameters(), lr=1e-3)
    for step in range(500):
        for _ in range(10):
            memory.add((torch.randn(128, device=device), rng.random()))
        places, states, rewards = memory.sample(32)
        with torch.no_grad():
            wanted = rewards + 0.99 * target(states).squeeze(1)
        loss = nn.functional.smooth_l1_loss(critic(states).squeeze(1), wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        memory.reprioritize(places)
        if step % 50 == 49:
            target.load_state_dict(critic.state_dict())
    print(f"{len(memory.transitions)} transitions, last loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
