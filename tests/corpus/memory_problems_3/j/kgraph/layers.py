import torch
import torch.nn as nn


class RelationalConv(nn.Module):
    """Relational graph convolution with basis decomposition."""

    def __init__(self, in_dim, out_dim, n_relations, n_bases=6):
        super().__init__()
        self.bases = nn.Parameter(torch.empty(n_bases, in_dim, out_dim))
        self.coefficients = nn.Parameter(torch.empty(n_relations, n_bases))
        self.self_loop = nn.Linear(in_dim, out_dim)
        nn.init.xavier_uniform_(self.bases)
        nn.init.xavier_uniform_(self.coefficients)

    def relation_weights(self):
        return torch.einsum("rb,bio->rio", self.coefficients, self.bases)

    def forward(self, h, graph):
        weight = self.relation_weights()
        neighbours = h[graph.src].unsqueeze(1)
        messages = torch.bmm(neighbours, weight[graph.rel]).squeeze(1)
        gathered = torch.zeros(graph.n_nodes, messages.shape[1], device=h.device)
        gathered = gathered.index_add(0, graph.dst, messages)
        return self.self_loop(h) + gathered * graph.inv_degree


class GraphEncoder(nn.Module):
    def __init__(self, n_nodes, dim, n_relations, n_layers):
        super().__init__()
        self.entities = nn.Embedding(n_nodes, dim)
        self.convs = nn.ModuleList(RelationalConv(dim, dim, n_relations) for _ in range(n_layers))
        self.norms = nn.ModuleList(nn.LayerNorm(dim) for _ in range(n_layers))

    def forward(self, graph):
        h = self.entities.weight
        for conv, norm in zip(self.convs, self.norms):
            h = torch.relu(norm(conv(h, graph)))
        return h


class DistMult(nn.Module):
    def __init__(self, n_relations, dim):
        super().__init__()
        self.relation = nn.Embedding(n_relations, dim)

    def forward(self, h, head, rel, tail):
        return (h[head] * self.relation(rel) * h[tail]).sum(dim=-1)
