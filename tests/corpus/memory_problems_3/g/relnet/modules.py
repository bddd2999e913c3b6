import torch
import torch.nn as nn
import torch.nn.functional as F


class MLP(nn.Module):
    def __init__(self, n_in, n_hid, n_out, do_prob=0.0):
        super().__init__()
        self.fc1 = nn.Linear(n_in, n_hid)
        self.fc2 = nn.Linear(n_hid, n_out)
        self.dropout_prob = do_prob

    def forward(self, inputs):
        x = F.elu(self.fc1(inputs))
        x = F.dropout(x, self.dropout_prob, training=self.training)
        return F.elu(self.fc2(x))


class MLPEncoder(nn.Module):
    """Infers a type for each ordered pair of nodes from their trajectories."""

    def __init__(self, n_in, n_hid, n_out):
        super().__init__()
        self.mlp1 = MLP(n_in, n_hid, n_hid)
        self.mlp2 = MLP(n_hid * 2, n_hid, n_hid)
        self.mlp3 = MLP(n_hid, n_hid, n_hid)
        self.mlp4 = MLP(n_hid * 2, n_hid, n_hid)
        self.fc_out = nn.Linear(n_hid, n_out)

    def edge2node(self, x, rel_rec):
        return torch.matmul(rel_rec.t(), x) / x.size(1)

    def node2edge(self, x, rel_rec, rel_send):
        receivers = torch.matmul(rel_rec, x)
        senders = torch.matmul(rel_send, x)
        return torch.cat([senders, receivers], dim=2)

    def forward(self, inputs, rel_rec, rel_send):
        x = self.mlp1(inputs.flatten(2))
        x = self.mlp2(self.node2edge(x, rel_rec, rel_send))
        x = self.mlp3(self.edge2node(x, rel_rec))
        x = self.mlp4(self.node2edge(x, rel_rec, rel_send))
        return self.fc_out(x)


class MLPDecoder(nn.Module):
    def __init__(self, n_in, edge_types, n_hid):
        super().__init__()
        self.msg = nn.ModuleList(nn.Linear(2 * n_in, n_hid) for _ in range(edge_types))
        self.out = MLP(n_in + n_hid, n_hid, n_hid)
        self.delta = nn.Linear(n_hid, n_in)

    def forward(self, state, edges, rel_rec, rel_send):
        pre = torch.cat([torch.matmul(rel_send, state), torch.matmul(rel_rec, state)], dim=-1)
        messages = 0
        for i, layer in enumerate(self.msg):
            messages = messages + F.relu(layer(pre)) * edges[..., i:i + 1]
        pooled = torch.matmul(rel_rec.t(), messages)
        return state + self.delta(self.out(torch.cat([state, pooled], dim=-1)))
