"""Pool of past selves to play against."""
import copy
from collections import deque


class League:
    def __init__(self, capacity, rng):
        self.members = deque(maxlen=capacity)
        self.rng = rng
        self.generation = 0

    def admit(self, policy):
        member = copy.deepcopy(policy).eval().requires_grad_(False)
        self.members.append((self.generation, member))
        self.generation += 1

    def opponent(self):
        index = int(self.rng.integers(len(self.members)))
        return self.members[index]
