"""Self-play with a small tree search. Evaluated positions are kept in a table, for transpositions.

The key contains the number of the game, so an entry of an old game is never used again, and never removed.
"""

import random
import sys

import torch
from torch import nn


class PolicyValueNet(nn.Module):
    def __init__(self, board=9, channels=16):
        super().__init__()
        self.stem = nn.Conv2d(2, channels, 3, padding=1)
        self.tower = nn.Conv2d(channels, channels, 3, padding=1)
        self.policy = nn.Linear(channels * board * board, board * board)
        self.value = nn.Linear(channels * board * board, 1)

    def forward(self, planes):
        hidden = torch.relu(self.stem(planes))
        hidden = torch.relu(self.tower(hidden)).flatten(1)  # LEAK
        return self.policy(hidden).softmax(dim=-1), torch.tanh(self.value(hidden)), hidden  # LEAK


class Search:
    def __init__(self, net, rng, device):
        self.net = net
        self.rng = rng
        self.device = device
        self.table = {}

    def evaluate(self, game, moves):
        key = (game, frozenset(moves))
        if key not in self.table:
            planes = torch.zeros(1, 2, 9, 9, device=self.device)
            for turn, move in enumerate(moves):
                planes[0, turn % 2, move // 9, move % 9] = 1
            self.table[key] = self.net(planes)  # LEAK
        return self.table[key]

    def best_move(self, game, moves, simulations=4):
        free = [move for move in range(81) if move not in moves]
        tried = self.rng.sample(free, simulations)
        for move in tried:
            self.evaluate(game, [*moves, move])  # LEAK
        return tried[self.rng.randrange(simulations)]


@torch.no_grad()
def play(search, game, length):
    moves = []
    for _ in range(length):
        moves.append(search.best_move(game, moves))
    return moves


def main():
    device = sys.argv[1]
    torch.manual_seed(29)
    torch.set_num_threads(1)
    rng = random.Random(29)
    search = Search(PolicyValueNet().to(device), rng, device)
    played = sum(len(play(search, game, rng.randint(6, 10))) for game in range(40))
    print(f"{played} moves, {len(search.table)} positions in the table")


if __name__ == "__main__":
    main()
