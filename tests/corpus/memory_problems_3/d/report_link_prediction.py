"""RotatE on a biomedical knowledge graph, with rank-based evaluation."""
import argparse
import math
from collections import defaultdict

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader


class TriplesFactory:
    def __init__(self, num_entities, num_relations, num_triples, seed):
        generator = torch.Generator().manual_seed(seed)
        self.num_entities, self.num_relations = num_entities, num_relations
        self.mapped_triples = torch.stack([
            torch.randint(num_entities, (num_triples,), generator=generator),
            torch.randint(num_relations, (num_triples,), generator=generator),
            torch.randint(num_entities, (num_triples,), generator=generator)], dim=1)

    def split(self, ratio):
        cut = int(len(self.mapped_triples) * ratio)
        return self.mapped_triples[:cut], self.mapped_triples[cut:]


class RotatE(nn.Module):
    def __init__(self, factory, dim):
        super().__init__()
        self.entities = nn.Embedding(factory.num_entities, 2 * dim)
        self.relations = nn.Embedding(factory.num_relations, dim)
        nn.init.uniform_(self.relations.weight, -math.pi, math.pi)

    @staticmethod
    def rotate(head, phase):
        real, imaginary = head.chunk(2, dim=-1)
        cos, sin = phase.cos(), phase.sin()
        return torch.cat([real * cos - imaginary * sin, real * sin + imaginary * cos], dim=-1)

    @staticmethod
    def interaction(rotated, tail):
        difference = rotated - tail
        return -difference.norm(p=2, dim=-1)

    def score_hrt(self, triples):
        head, relation, tail = triples.unbind(dim=1)
        return self.interaction(self.rotate(self.entities(head), self.relations(relation)), self.entities(tail))

    def score_t(self, pairs):
        rotated = self.rotate(self.entities(pairs[:, 0]), self.relations(pairs[:, 1])).unsqueeze(1)
        return self.interaction(rotated, self.entities.weight.unsqueeze(0))


class BasicNegativeSampler:
    def __init__(self, num_entities):
        self.num_entities = num_entities

    def corrupt(self, positives):
        negatives = positives.clone()
        negatives[:, 2] = torch.randint(self.num_entities, (len(positives),), device=positives.device)
        return negatives


class RankBasedEvaluator:
    def __init__(self, known, ks=(1, 10)):
        self.ks = ks
        self.tails = defaultdict(list)
        for head, relation, tail in known.tolist():
            self.tails[head, relation].append(tail)

    @torch.inference_mode()
    def evaluate(self, model, triples, batch_size):
        ranks = []
        for batch in triples.split(batch_size):
            batch = batch.cuda()
            scores = model.score_t(batch[:, :2])
            true = scores.gather(1, batch[:, 2:])
            for row, (head, relation, _) in enumerate(batch.tolist()):
                scores[row, self.tails.get((head, relation), [])] = float("-inf")
            ranks.append((scores > true).sum(dim=1).add(1).cpu())
        ranks = torch.cat(ranks).float()
        result = {f"hits@{k}": (ranks <= k).float().mean().item() for k in self.ks}
        return {"mrr": ranks.reciprocal().mean().item(), **result}


def train(model, triples, sampler, epochs, batch_size, margin=6.0):
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.1)
    for epoch in range(epochs):
        total = 0.0
        for positives in DataLoader(triples, batch_size=batch_size, shuffle=True):
            positives = positives.cuda()
            good, bad = model.score_hrt(positives), model.score_hrt(sampler.corrupt(positives))
            loss = -(F.logsigmoid(margin + good) + F.logsigmoid(-bad - margin)).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item() * len(positives)
        print(f"epoch {epoch} loss {total / len(triples):.4f} peak {torch.cuda.max_memory_allocated() / 2**20:.0f} MiB")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--eval-batch", type=int, default=32)
    options = parser.parse_args()
    factory = TriplesFactory(num_entities=20_000, num_relations=28, num_triples=2_400, seed=11)
    training, testing = factory.split(0.96)
    model = RotatE(factory, options.dim).cuda()
    train(model, training, BasicNegativeSampler(factory.num_entities), epochs=4, batch_size=512)
    print(RankBasedEvaluator(training).evaluate(model, testing, options.eval_batch))
    print(f"peak {torch.cuda.max_memory_allocated() / 2**20:.0f} MiB")
