import torch


class Replay:
    """Ring buffer of positions, search policies and outcomes next to the learner."""

    def __init__(self, capacity, planes, size, moves, device):
        self.boards = torch.zeros(capacity, planes, size, size, dtype=torch.uint8, device=device)
        self.policies = torch.zeros(capacity, moves, dtype=torch.float16, device=device)
        self.outcomes = torch.zeros(capacity, dtype=torch.int8, device=device)
        self.capacity = capacity
        self.cursor = 0
        self.filled = 0

    def extend(self, boards, policies, outcomes):
        n = len(boards)
        rows = (torch.arange(n) + self.cursor).remainder(self.capacity).to(self.boards.device)
        self.boards[rows] = boards
        self.policies[rows] = policies
        self.outcomes[rows] = outcomes
        self.cursor = (self.cursor + n) % self.capacity
        self.filled = min(self.filled + n, self.capacity)

    def sample(self, n, generator):
        rows = torch.randint(0, self.filled, (n,), generator=generator).to(self.boards.device)
        return self.boards[rows].float(), self.policies[rows].float(), self.outcomes[rows].float()
