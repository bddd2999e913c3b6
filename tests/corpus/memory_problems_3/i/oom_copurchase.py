"""Predict product categories on a co-purchase graph with graph attention."""
import sys
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn
import torch.nn.functional as F


@dataclass
class Graph:
    x: torch.Tensor
    y: torch.Tensor
    edge_index: torch.Tensor
    train_nodes: torch.Tensor

    def to(self, device):
        return Graph(*(getattr(self, name).to(device) for name in ("x", "y", "edge_index", "train_nodes")))


def load_graph(nodes=160_000, degree=26, features=100, classes=47, seed=0):
    rng = np.random.default_rng(seed)
    edges = nodes * degree // 2
    source = rng.integers(0, nodes, edges, dtype=np.int64)
    target = (source + rng.zipf(1.6, edges).clip(max=nodes // 2)) % nodes
    both = np.stack([np.concatenate([source, target]), np.concatenate([target, source])])
    return Graph(
        x=torch.from_numpy(rng.standard_normal((nodes, features), dtype=np.float32)),
        y=torch.from_numpy(rng.integers(0, classes, nodes)),
        edge_index=torch.from_numpy(both),
        train_nodes=torch.from_numpy(rng.permutation(nodes)[: nodes // 10]),
    )


class GraphAttention(nn.Module):
    def __init__(self, c_in, c_out, heads=4):
        super().__init__()
        self.heads, self.c_out = heads, c_out
        self.project = nn.Linear(c_in, heads * c_out, bias=False)
        self.att_src = nn.Parameter(torch.empty(heads, c_out))
        self.att_dst = nn.Parameter(torch.empty(heads, c_out))
        self.bias = nn.Parameter(torch.zeros(heads * c_out))
        nn.init.xavier_uniform_(self.att_src)
        nn.init.xavier_uniform_(self.att_dst)

    def edge_softmax(self, score, dst, nodes):
        top = score.new_full((nodes, self.heads), -1e9)
        top = top.scatter_reduce(0, dst[:, None].expand_as(score), score.detach(), "amax")
        weight = (score - top[dst]).exp()
        norm = score.new_zeros(nodes, self.heads).index_add(0, dst, weight)
        return weight / (norm[dst] + 1e-16)

    def forward(self, x, edge_index):
        src, dst = edge_index
        nodes = x.shape[0]
        h = self.project(x).view(nodes, self.heads, self.c_out)
        a_src = (h * self.att_src).sum(-1)
        a_dst = (h * self.att_dst).sum(-1)
        alpha = self.edge_softmax(F.leaky_relu(a_src[src] + a_dst[dst], 0.2), dst, nodes)
        message = h[src] * alpha[..., None]
        out = h.new_zeros(nodes, self.heads, self.c_out).index_add(0, dst, message)
        return out.flatten(1) + self.bias


class ProductNet(nn.Module):
    def __init__(self, features, classes, hidden=64, heads=4):
        super().__init__()
        self.first = GraphAttention(features, hidden, heads)
        self.second = GraphAttention(heads * hidden, hidden, heads)
        self.head = nn.Linear(heads * hidden, classes)

    def forward(self, x, edge_index):
        x = F.elu(self.first(x, edge_index))
        x = F.elu(self.second(x, edge_index))
        return self.head(x)


def train_step(model, optimizer, graph):
    model.train()
    optimizer.zero_grad()
    logits = model(graph.x, graph.edge_index)
    loss = F.cross_entropy(logits[graph.train_nodes], graph.y[graph.train_nodes])
    loss.backward()
    optimizer.step()
    return loss.item()


def main(device):
    torch.manual_seed(0)
    graph = load_graph()
    print(f"{graph.x.shape[0]} products, {graph.edge_index.shape[1]} directed edges")
    graph = graph.to(device)
    model = ProductNet(graph.x.shape[1], 47).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3, weight_decay=5e-4)
    for epoch in range(5):
        loss = train_step(model, optimizer, graph)
        print(f"epoch {epoch}  loss {loss:.4f}", flush=True)


if __name__ == "__main__":
    main(torch.device(sys.argv[1]))
