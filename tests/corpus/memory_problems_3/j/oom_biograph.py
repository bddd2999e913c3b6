"""Link prediction for drug repurposing on a biomedical knowledge graph."""
import sys
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

from kgraph.graph import RELATIONS, load_graph
from kgraph.layers import DistMult, GraphEncoder

N_NODES = 45_000
N_EDGES = 220_000
DIM = 64
TRIPLES = 20_000
NEGATIVES = 4


class LinkPredictor(nn.Module):
    def __init__(self, n_nodes):
        super().__init__()
        self.encoder = GraphEncoder(n_nodes, DIM, len(RELATIONS), n_layers=2)
        self.decoder = DistMult(len(RELATIONS), DIM)

    def forward(self, graph, head, rel, tail):
        return self.decoder(self.encoder(graph), head, rel, tail)


def sample_triples(graph, generator):
    """True triples followed by copies of them with another tail."""
    picked = torch.randint(0, graph.n_edges, (TRIPLES,), generator=generator)
    head, rel, tail = graph.src[picked], graph.rel[picked], graph.dst[picked]
    corrupted = torch.randint(0, graph.n_nodes, (TRIPLES * NEGATIVES,), generator=generator)
    triples = (head.repeat(NEGATIVES + 1), rel.repeat(NEGATIVES + 1), torch.cat([tail, corrupted]))
    labels = torch.zeros(TRIPLES * (NEGATIVES + 1))
    labels[:TRIPLES] = 1
    return triples, labels


def train(model, graph, batches, device, lr=5e-3):
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    for epoch, (triples, labels) in enumerate(batches):
        started = time.time()
        head, rel, tail = (t.to(device) for t in triples)
        scores = model(graph, head, rel, tail)
        loss = F.binary_cross_entropy_with_logits(scores, labels.to(device))
        loss = loss + 1e-4 * model.decoder.relation.weight.pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        print(f"epoch {epoch}: loss {loss.item():.4f} ({time.time() - started:.2f} s)", flush=True)


@torch.no_grad()
def rank_diseases(model, graph, drug, candidates, device):
    model.eval()
    h = model.encoder(graph)
    head = torch.full((candidates,), drug, device=device)
    rel = torch.full((candidates,), RELATIONS.index("treats"), device=device)
    tail = torch.arange(candidates, device=device)
    return model.decoder(h, head, rel, tail).topk(10).indices


def main():
    device = torch.device(sys.argv[1] if len(sys.argv) > 1 else "cuda")
    torch.manual_seed(31)
    generator = torch.Generator().manual_seed(31)
    graph = load_graph(N_NODES, N_EDGES, seed=31)
    print(f"graph: {graph.n_nodes} nodes, {graph.n_edges} edges, {len(RELATIONS)} relations", flush=True)
    batches = [sample_triples(graph, generator) for _ in range(5)]
    model = LinkPredictor(graph.n_nodes).to(device)
    graph = graph.to(device)
    train(model, graph, batches, device)
    top = rank_diseases(model, graph, drug=17, candidates=3000, device=device)
    print(f"ranked {len(top)} candidate diseases")


if __name__ == "__main__":
    main()
