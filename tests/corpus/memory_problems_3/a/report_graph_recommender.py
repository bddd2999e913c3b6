"""LightGCN on top of a matrix factorisation: embeddings smoothed over the graph of interactions, trained with BPR."""
import torch
from torch import nn

from interactions import Interactions

SETTINGS = {"n_users": 39000, "n_items": 22000, "dim": 64, "layers": 3, "batch_size": 2048, "steps": 150,
            "warm_up_steps": 400, "decay": 1e-4}


class MatrixFactorisation(nn.Module):
    def __init__(self, dataset, dim):
        super().__init__()
        self.n_users, self.n_items = dataset.n_users, dataset.n_items
        self.embedding = nn.Embedding(self.n_users + self.n_items, dim)
        nn.init.normal_(self.embedding.weight, std=0.1)

    def computed(self):
        return self.embedding.weight.split([self.n_users, self.n_items])

    def bpr_loss(self, users, positive, negative, decay):
        user_vectors, item_vectors = self.computed()
        anchor = user_vectors[users]
        margin = (anchor * (item_vectors[positive] - item_vectors[negative])).sum(dim=1)
        initial = self.embedding.weight[users].square().sum() / len(users)
        return nn.functional.softplus(-margin).mean() + decay * initial

    @torch.no_grad()
    def recommend(self, users, k=20):
        user_vectors, item_vectors = self.computed()
        return (user_vectors[users] @ item_vectors.t()).topk(k, dim=1).indices


class LightGCN(MatrixFactorisation):
    def __init__(self, dataset, graph, warm, layers):
        super().__init__(dataset, warm.embedding.embedding_dim)
        self.embedding.load_state_dict(warm.embedding.state_dict())
        self.graph, self.layers = graph, layers

    def computed(self):
        current = self.embedding.weight
        total = current
        for _ in range(self.layers):
            current = self.graph.propagate(current)
            total = total + current
        return (total / (self.layers + 1)).split([self.n_users, self.n_items])


def train(model, dataset, device, steps):
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for step in range(1, steps + 1):
        users, positive, negative = (part.to(device) for part in dataset.sample(SETTINGS["batch_size"]))
        loss = model.bpr_loss(users, positive, negative, SETTINGS["decay"])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 50 == 0:
            print(f"step {step}: loss {loss.item():.4f}, peak {torch.cuda.max_memory_allocated() / 2**20:.0f} MiB")


def main():
    torch.manual_seed(2020)
    device = torch.device("cuda")
    dataset = Interactions(SETTINGS["n_users"], SETTINGS["n_items"])
    print(f"{dataset.n_users} users, {dataset.n_items} items, {len(dataset)} interactions")
    warm = MatrixFactorisation(dataset, SETTINGS["dim"]).to(device)
    train(warm, dataset, device, SETTINGS["warm_up_steps"])
    model = LightGCN(dataset, dataset.build_graph(device), warm, SETTINGS["layers"]).to(device)
    train(model, dataset, device, SETTINGS["steps"])
    for start in range(0, 4096, 1024):
        recommended = model.recommend(torch.arange(start, start + 1024, device=device))
        print(f"users {start} to {start + 1023}: {recommended.shape[1]} items each")


if __name__ == "__main__":
    main()
