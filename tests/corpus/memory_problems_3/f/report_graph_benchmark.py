"""Node classification on a citation graph, sampled training and full graph evaluation."""
import logging
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

CFG = {
    "dataset": {"nodes": 40_000, "degree": 12, "features": 128, "classes": 32},
    "train": {"batch_nodes": 1024, "iters_per_epoch": 20, "epochs": 4, "eval_period": 1},
    "gnn": {"dim_inner": 128, "layers_mp": 3, "dropout": 0.3},
    "optim": {"base_lr": 0.01, "weight_decay": 5e-4},
}


class Graph:
    def __init__(self, cfg, seed=0):
        rng = np.random.default_rng(seed)
        n, deg = cfg["nodes"], cfg["degree"]
        self.x = torch.from_numpy(rng.standard_normal((n, cfg["features"]), dtype=np.float32))
        self.y = torch.from_numpy(rng.integers(0, cfg["classes"], n))
        self.neighbours = torch.from_numpy(rng.integers(0, n, (n, deg)))
        self.split = torch.from_numpy(rng.choice(3, n, p=[0.6, 0.2, 0.2]))

    def full_batch(self):
        n, deg = self.neighbours.shape
        dst = torch.arange(n).repeat_interleave(deg)
        return self.x, self.y, torch.stack([self.neighbours.reshape(-1), dst]), n

    def sampled_batch(self, rng, size):
        seeds = torch.from_numpy(rng.choice(len(self.x), size, replace=False))
        neigh = self.neighbours[seeds].reshape(-1)
        nodes = torch.cat([seeds, neigh])
        src = torch.arange(size, len(nodes))
        dst = torch.arange(size).repeat_interleave(self.neighbours.shape[1])
        return self.x[nodes], self.y[nodes], torch.stack([src, dst]), size


class SAGELayer(nn.Module):
    def __init__(self, din, dout):
        super().__init__()
        self.self_lin, self.neigh_lin = nn.Linear(din, dout), nn.Linear(din, dout, bias=False)
        self.norm = nn.BatchNorm1d(dout)

    def forward(self, x, edge_index):
        src, dst = edge_index
        agg = torch.zeros_like(x).index_add_(0, dst, x[src])
        return self.norm(self.self_lin(x) + self.neigh_lin(agg))


class GNN(nn.Module):
    def __init__(self, din, dout, cfg):
        super().__init__()
        dims = [din] + [cfg["dim_inner"]] * cfg["layers_mp"]
        self.layers = nn.ModuleList(SAGELayer(a, b) for a, b in zip(dims[:-1], dims[1:]))
        self.head = nn.Sequential(nn.Linear(dims[-1], dims[-1]), nn.ReLU(), nn.Linear(dims[-1], dout))
        self.dropout = cfg["dropout"]

    def forward(self, x, edge_index):
        for layer in self.layers:
            x = F.dropout(F.relu(layer(x, edge_index)), self.dropout, self.training)
        return self.head(x)


class Logger:
    def __init__(self, name):
        self.name, self.loss, self.seen = name, 0.0, 0

    def update_stats(self, true, pred, loss):
        self.loss += loss * len(true)
        self.seen += len(true)

    def write_epoch(self, epoch):
        logging.info("%s epoch %d loss %.4f", self.name, epoch, self.loss / max(self.seen, 1))
        self.loss, self.seen = 0.0, 0


def train_epoch(logger, graph, model, optimizer, rng, cfg):
    model.train()
    for _ in range(cfg["iters_per_epoch"]):
        x, y, edges, n = graph.sampled_batch(rng, cfg["batch_nodes"])
        optimizer.zero_grad()
        pred = model(x.cuda(), edges.cuda())[:n]
        true = y[:n].cuda()
        loss = F.cross_entropy(pred, true)
        loss.backward()
        optimizer.step()
        logger.update_stats(true=true.cpu(), pred=pred.detach().cpu(), loss=loss.item())


def eval_epoch(logger, graph, model, which):
    model.eval()
    x, y, edges, _ = graph.full_batch()
    pred = model(x.cuda(), edges.cuda())
    keep = (graph.split == which).nonzero().squeeze(1).cuda()
    pred, true = pred[keep], y.cuda()[keep]
    loss = F.cross_entropy(pred, true)
    logger.update_stats(true=true.detach().cpu(), pred=pred.detach().cpu(), loss=loss.item())


def main():
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    torch.manual_seed(0)
    graph = Graph(CFG["dataset"])
    model = GNN(CFG["dataset"]["features"], CFG["dataset"]["classes"], CFG["gnn"]).cuda()
    optimizer = torch.optim.Adam(model.parameters(), lr=CFG["optim"]["base_lr"],
                                 weight_decay=CFG["optim"]["weight_decay"])
    loggers = [Logger(n) for n in ("train", "val", "test")]
    rng = np.random.default_rng(1)
    start = time.time()
    for epoch in range(CFG["train"]["epochs"]):
        train_epoch(loggers[0], graph, model, optimizer, rng, CFG["train"])
        loggers[0].write_epoch(epoch)
        if epoch % CFG["train"]["eval_period"] == 0:
            for i in (1, 2):
                eval_epoch(loggers[i], graph, model, i)
                loggers[i].write_epoch(epoch)
    logging.info("Task done, %.1fs", time.time() - start)


if __name__ == "__main__":
    main()
