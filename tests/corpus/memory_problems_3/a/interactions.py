"""Interactions of users with items, and the normalised graph that LightGCN propagates over."""
import random
from dataclasses import dataclass

import torch


@dataclass
class Graph:
    """Edges in both directions between users (first) and items (after them), with symmetric normalisation."""

    source: torch.Tensor
    target: torch.Tensor
    weight: torch.Tensor
    nodes: int

    def propagate(self, embeddings):
        messages = embeddings[self.source] * self.weight[:, None]
        return torch.zeros_like(embeddings).index_add_(0, self.target, messages)


class Interactions:
    def __init__(self, n_users, n_items, per_user=12, seed=0):
        self.n_users, self.n_items = n_users, n_items
        generator = torch.Generator().manual_seed(seed)
        popularity = torch.rand(n_users * per_user, generator=generator).pow(3)
        self.users = torch.arange(n_users).repeat_interleave(per_user)
        self.items = (popularity * n_items).long()
        self.random = random.Random(seed)

    def __len__(self):
        return len(self.users)

    def sample(self, batch_size):
        """Users, items they took and items drawn at random, for the pairwise loss."""
        rows = torch.tensor([self.random.randrange(len(self)) for _ in range(batch_size)])
        return self.users[rows], self.items[rows], torch.randint(0, self.n_items, (batch_size,))

    def build_graph(self, device):
        users = self.users.to(device)
        items = self.items.to(device) + self.n_users
        nodes = self.n_users + self.n_items
        adjacency = torch.zeros(nodes, nodes, device=device)
        adjacency[users, items] = 1.0
        adjacency[items, users] = 1.0
        scale = adjacency.sum(dim=1).clamp(min=1).rsqrt()
        source, target = adjacency.nonzero(as_tuple=True)
        return Graph(source, target, scale[source] * scale[target], nodes)
