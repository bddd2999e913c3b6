"""A drug / gene / disease graph with typed edges."""
import numpy as np
import torch

RELATIONS = ["binds", "inhibits", "activates", "treats", "causes", "resembles", "expressed_in",
             "interacts", "regulates", "associated", "localised", "palliates"]


class TypedGraph:
    def __init__(self, n_nodes, src, dst, rel):
        self.n_nodes = n_nodes
        self.src, self.dst, self.rel = src, dst, rel
        degree = torch.zeros(n_nodes).index_add_(0, dst, torch.ones(len(dst)))
        self.inv_degree = (1.0 / degree.clamp(min=1)).unsqueeze(1)

    @property
    def n_edges(self):
        return len(self.src)

    def to(self, device):
        for name in ("src", "dst", "rel", "inv_degree"):
            setattr(self, name, getattr(self, name).to(device))
        return self


def load_graph(n_nodes, n_edges, seed):
    rng = np.random.default_rng(seed)
    weights = rng.dirichlet(np.ones(len(RELATIONS)))
    rel = np.sort(rng.choice(len(RELATIONS), n_edges, p=weights))
    src = (n_nodes * rng.power(0.6, n_edges)).astype(np.int64)
    dst = rng.integers(0, n_nodes, n_edges)
    return TypedGraph(n_nodes, *(torch.from_numpy(a.astype(np.int64)) for a in (src, dst, rel)))
