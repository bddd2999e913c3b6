"""A language-model server with keys and values in blocks that requests with a common prefix share.

Blocks are counted by reference; a cancelled request does not give back the references it took.
"""

import random
import sys

import torch

BLOCK = 16
WIDTH = 48


class Block:
    def __init__(self, device):
        self.data = torch.zeros(2, BLOCK, WIDTH, device=device)  # LEAK
        self.references = 0


class BlockTable:
    def __init__(self, device):
        self.device = device
        self.blocks = {}

    def acquire(self, prefix):
        block = self.blocks.get(prefix)
        if block is None:
            block = self.blocks[prefix] = Block(self.device)  # LEAK
        block.references += 1
        return block

    def release(self, prefix):
        block = self.blocks[prefix]
        block.references -= 1
        if block.references == 0:
            del self.blocks[prefix]


class Engine:
    def __init__(self, device):
        self.table = BlockTable(device)
        self.weight = torch.randn(WIDTH, 2 * WIDTH, device=device)
        self.device = device

    def run(self, tokens, cancelled):
        taken = []
        for end in range(BLOCK, len(tokens) + 1, BLOCK):
            prefix = tuple(tokens[:end])
            block = self.table.acquire(prefix)  # LEAK
            taken.append(prefix)
            hidden = torch.randn(BLOCK, WIDTH, device=self.device) @ self.weight
            block.data.copy_(hidden.view(BLOCK, 2, WIDTH).transpose(0, 1))
        if cancelled:
            return False
        for _ in range(8):
            self.attend(taken)
        for prefix in taken:
            self.table.release(prefix)
        return True

    def attend(self, taken):
        keys = torch.cat([self.table.blocks[p].data[0] for p in taken])
        values = torch.cat([self.table.blocks[p].data[1] for p in taken])
        query = torch.randn(1, WIDTH, device=self.device)
        return torch.softmax(query @ keys.T, dim=-1) @ values


def main():
    torch.manual_seed(3)
    torch.set_num_threads(1)
    rng = random.Random(3)
    engine = Engine(sys.argv[1])
    system_prompts = [[rng.randrange(1000) for _ in range(48)] for _ in range(3)]
    completed = 0
    for _ in range(220):
        tokens = rng.choice(system_prompts) + [rng.randrange(1000) for _ in range(rng.randint(16, 80))]
        completed += engine.run(tokens, cancelled=rng.random() < 0.2)
    print("completed:", completed, "blocks:", len(engine.table.blocks))


if __name__ == "__main__":
    main()
