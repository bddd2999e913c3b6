"""Side effect prediction on a graph of drugs and proteins with typed links."""
import sys

import torch
from torch import nn
from torch.nn import functional as F

RELATIONS = ["binds", "inhibits", "activates", "metabolises", "transports", "interacts", "similar", "regulates"]
NODES, LINKS, WIDTH, EFFECTS = 5_000, 24_000, 112, 60


class LinkGraph:
    def __init__(self, seed, device):
        generator = torch.Generator().manual_seed(seed)
        self.source = torch.randint(0, NODES, (LINKS,), generator=generator).to(device)
        self.target = torch.randint(0, NODES, (LINKS,), generator=generator).to(device)
        self.kind = torch.randint(0, len(RELATIONS), (LINKS,), generator=generator).to(device)
        self.features = torch.randn(NODES, 64, generator=generator).to(device)
        self.effects = torch.randint(0, 2, (NODES, EFFECTS), generator=generator).float().to(device)
        degree = torch.zeros(NODES, device=device).index_add_(0, self.target, torch.ones(LINKS, device=device))
        self.scale = degree.clamp(min=1).reciprocal().unsqueeze(-1)


class TypedConv(nn.Module):
    """Messages along links; every kind of link has its own map of the source node."""

    def __init__(self, cin, cout, kinds):
        super().__init__()
        self.maps = nn.Parameter(torch.empty(kinds, cin, cout))
        self.own = nn.Linear(cin, cout)
        nn.init.xavier_uniform_(self.maps)

    def messages(self, x, graph):
        link_maps = self.maps[graph.kind]
        return torch.bmm(x[graph.source].unsqueeze(1), link_maps).squeeze(1)

    def forward(self, x, graph):
        sent = self.messages(x, graph)
        gathered = torch.zeros(len(x), sent.shape[-1], device=x.device, dtype=x.dtype)
        gathered = gathered.index_add(0, graph.target, sent)
        return self.own(x) + gathered * graph.scale


class EffectModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.inlet = nn.Linear(64, WIDTH)
        self.conv1 = TypedConv(WIDTH, WIDTH, len(RELATIONS))
        self.conv2 = TypedConv(WIDTH, WIDTH, len(RELATIONS))
        self.outlet = nn.Linear(WIDTH, EFFECTS)

    def forward(self, graph):
        x = torch.relu(self.inlet(graph.features))
        x = F.dropout(torch.relu(self.conv1(x, graph)), 0.2, self.training)
        x = torch.relu(self.conv2(x, graph))
        return self.outlet(x)


def train_epoch(model, optimizer, graph, split):
    model.train()
    logits = model(graph)
    loss = F.binary_cross_entropy_with_logits(logits[:split], graph.effects[:split])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


@torch.no_grad()
def validate(model, graph, split):
    model.eval()
    logits = model(graph)[split:]
    return F.binary_cross_entropy_with_logits(logits, graph.effects[split:]).item()


def main():
    device = torch.device(sys.argv[1] if len(sys.argv) > 1 else "cuda")
    torch.manual_seed(13)
    graph = LinkGraph(13, device)
    model = EffectModel().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3, weight_decay=1e-5)
    size = sum(p.numel() for p in model.parameters())
    print(f"{NODES} nodes, {LINKS} links of {len(RELATIONS)} kinds, {size / 1e6:.2f} M parameters")
    for epoch in range(1, 9):
        loss = train_epoch(model, optimizer, graph, split=4_000)
        if epoch % 2 == 0:
            held_out = validate(model, graph, split=4_000)
            peak = torch.cuda.max_memory_allocated(device) / 2**20
            print(f"epoch {epoch}: train {loss:.4f}, held out {held_out:.4f}, peak {peak:.0f} MiB", flush=True)


if __name__ == "__main__":
    main()
