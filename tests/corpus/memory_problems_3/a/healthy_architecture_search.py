"""Evolutionary search for a keyword spotter; the population holds trained networks, the weakest is replaced."""
import random

import torch
from torch import nn


class Individual:
    def __init__(self, widths, network, fitness=None):
        self.widths = widths
        self.network = network
        self.fitness = fitness


def build(widths):
    layers, previous = [], 40
    for width in widths:
        layers += [nn.Conv1d(previous, width, 5, padding=2), nn.BatchNorm1d(width), nn.ReLU()]
        previous = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(previous, 35)).cuda()


def mutate(widths, rng):
    child = list(widths)
    choice = rng.random()
    if choice < 0.25 and len(child) < 7:
        child.insert(rng.randrange(len(child) + 1), rng.choice((256, 512, 768)))
    elif choice < 0.4 and len(child) > 3:
        child.pop(rng.randrange(len(child)))
    else:
        child[rng.randrange(len(child))] = rng.choice((256, 384, 512, 768, 1024))
    return tuple(child)


class Search:
    def __init__(self, population=20, tournament=5, seed=5):
        self.size = population
        self.tournament = tournament
        self.rng = random.Random(seed)
        self.population = []
        self.history = {}

    def data(self, batches):
        for _ in range(batches):
            yield torch.zeros(64, 40, 101).cuda(), torch.randint(0, 35, (64,)).cuda()

    def train(self, individual, batches=6):
        optimizer = torch.optim.SGD(individual.network.parameters(), lr=0.1, momentum=0.9, nesterov=True)
        for audio, words in self.data(batches):
            loss = nn.functional.cross_entropy(individual.network(audio), words)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        individual.network.zero_grad(set_to_none=True)
        individual.network.eval()
        parameters = sum(p.numel() for p in individual.network.parameters())
        individual.fitness = self.rng.random() - parameters / 5e7
        self.history[individual.widths] = individual.fitness
        return individual

    def seed_population(self):
        for _ in range(self.size):
            widths = tuple(self.rng.choice((256, 512, 768)) for _ in range(self.rng.randint(3, 6)))
            self.population.append(self.train(Individual(widths, build(widths))))

    def generation(self):
        parent = max(self.rng.sample(self.population, self.tournament), key=lambda one: one.fitness)
        widths = mutate(parent.widths, self.rng)
        child = self.train(Individual(widths, build(widths)))
        weakest = min(self.population, key=lambda one: one.fitness)
        if child.fitness > weakest.fitness:
            self.population.remove(weakest)
            self.population.append(child)
        return child

    def run(self, generations):
        self.seed_population()
        print(f"population of {len(self.population)}: {torch.cuda.memory_allocated() >> 20} MiB")
        for number in range(generations):
            child = self.generation()
            if number % 15 == 0:
                print(f"generation {number}: {child.widths} {child.fitness:.3f}, "
                      f"{torch.cuda.memory_allocated() >> 20} MiB, {len(self.history)} tried")
        return max(self.population, key=lambda one: one.fitness)


if __name__ == "__main__":
    best = Search().run(generations=90)
    print("best", best.widths, f"{best.fitness:.3f}")
