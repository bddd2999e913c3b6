"""Positions of self-played games in preallocated chunks; the oldest chunk makes room for a new one."""
import collections

import torch


class Chunk:
    def __init__(self, positions, planes, size, moves, device):
        self.boards = torch.empty(positions, planes, size, size, dtype=torch.half, device=device)
        self.policy = torch.empty(positions, moves, device=device)
        self.value = torch.empty(positions, device=device)
        self.filled = 0

    def room(self):
        return len(self.value) - self.filled

    def write(self, boards, policy, value):
        end = self.filled + len(value)
        self.boards[self.filled: end] = boards
        self.policy[self.filled: end] = policy
        self.value[self.filled: end] = value
        self.filled = end


class PositionStore:
    def __init__(self, chunks, positions, planes, size, device):
        self.shape = (positions, planes, size, size * size + 1, device)
        self.chunks = collections.deque(maxlen=chunks)

    def add(self, boards, policy, value):
        while len(value):
            if not self.chunks or not self.chunks[-1].room():
                self.chunks.append(Chunk(*self.shape))
            n = min(len(value), self.chunks[-1].room())
            self.chunks[-1].write(boards[:n], policy[:n], value[:n])
            boards, policy, value = boards[n:], policy[n:], value[n:]

    def sample(self, rng, count):
        chunk = rng.choice(self.chunks)
        rows = torch.tensor([rng.randrange(chunk.filled) for _ in range(count)]).to(chunk.value.device)
        return chunk.boards[rows].float(), chunk.policy[rows], chunk.value[rows]

    def __len__(self):
        return sum(c.filled for c in self.chunks)
