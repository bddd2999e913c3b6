import math

import numpy as np
import torch


class Node:
    __slots__ = ("hidden", "value", "prior", "children", "visits", "total")

    def __init__(self, hidden, value, prior):
        self.hidden = hidden
        self.value = value
        self.prior = prior
        self.children = {}
        self.visits = 0
        self.total = 0.0


class Search:
    def __init__(self, model, rng, width=90, c_puct=1.5):
        self.model, self.rng, self.width, self.c = model, rng, width, c_puct

    def make_root(self, board):
        hidden = self.model.represent(board)
        prior, value = self.model.predict(hidden)
        return Node(hidden[0], float(value[0]), prior[0].cpu().numpy())

    def expand(self, node, legal):
        """Evaluate the candidate moves of a node in one batch."""
        moves = self.rng.permutation(legal)[: self.width]
        parents = node.hidden.unsqueeze(0).expand(len(moves), -1, -1, -1)
        hidden = self.model.advance(parents, torch.as_tensor(moves, device=parents.device))
        prior, value = self.model.predict(hidden)
        prior, value = prior.cpu().numpy(), value.cpu().numpy()
        for i, m in enumerate(moves):
            node.children[int(m)] = Node(hidden[i], float(value[i]), prior[i])

    def select(self, node):
        scale = self.c * math.sqrt(node.visits + 1)
        noise = self.rng.dirichlet([0.3] * len(node.children))
        scores = [
            (ch.total / (ch.visits + 1)) + scale * (0.75 * float(node.prior[m]) + 0.25 * noise[k]) / (1 + ch.visits)
            for k, (m, ch) in enumerate(node.children.items())
        ]
        move = list(node.children)[int(np.argmax(scores))]
        return move, node.children[move]

    def simulate(self, root, legal):
        node, path, taken = root, [root], set()
        while node.children and len(path) < 6:
            move, node = self.select(node)
            taken.add(move)
            path.append(node)
        if not node.children:
            self.expand(node, np.array([m for m in legal if m not in taken]))
        for n in reversed(path):
            n.visits += 1
            n.total += path[-1].value

    def best(self, root):
        move = max(root.children, key=lambda m: root.children[m].visits)
        return move, root.children[move]
