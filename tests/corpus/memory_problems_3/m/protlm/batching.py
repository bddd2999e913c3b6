import random

import torch
from torch.nn.utils.rnn import pad_sequence

PAD = 0
IGNORE = -100


class ResidueBatcher:
    """Groups chains so that every batch carries about the same number of residues."""

    def __init__(self, lengths, budget, seed=0):
        self.lengths = lengths
        self.budget = budget
        self.rng = random.Random(seed)

    def __iter__(self):
        order = list(range(len(self.lengths)))
        self.rng.shuffle(order)
        group, used = [], 0
        for idx in order:
            n = self.lengths[idx]
            if group and used + n > self.budget:
                yield group
                group, used = [], 0
            group.append(idx)
            used += n
        if group:
            yield group


def collate(chains):
    tokens = [torch.from_numpy(c.residues) for c in chains]
    labels = [torch.from_numpy(c.states) for c in chains]
    x = pad_sequence(tokens, batch_first=True, padding_value=PAD)
    y = pad_sequence(labels, batch_first=True, padding_value=IGNORE)
    return x, y
