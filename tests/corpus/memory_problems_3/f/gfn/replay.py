"""Experience storage shared by the samplers."""
import random
from collections import deque


class ReplayBuffer:
    def __init__(self, capacity, warmup, seed=0):
        self.capacity = capacity
        self.warmup = warmup
        self.buffer = deque(maxlen=capacity)
        self.rng = random.Random(seed)
        self.input_size = None

    def push(self, *args):
        if self.input_size is None:
            self.input_size = len(args)
        elif self.input_size != len(args):
            raise ValueError("ReplayBuffer input size must be constant")
        self.buffer.append(args)

    def sample(self, n):
        batch = self.rng.sample(list(self.buffer), n)
        return list(zip(*batch))

    def __len__(self):
        return len(self.buffer)
