"""A GAN with three optimizers that alternate unevenly: critic each step, generator every fifth step, and the mapping network every 23rd step once warmed up."""

import sys

import torch
from torch import nn


def mlp(*sizes):
    layers = []
    for a, b in zip(sizes, sizes[1:]):
        layers += [nn.Linear(a, b), nn.LeakyReLU(0.2)]
    return nn.Sequential(*layers[:-1])


class Game:
    def __init__(self, device):
        self.device = device
        self.mapping = mlp(16, 64, 64, 32).to(device)
        self.generator = mlp(32, 128, 96).to(device)
        self.critic = mlp(96, 128, 64, 1).to(device)
        self.critic_optimizer = torch.optim.RMSprop(self.critic.parameters(), lr=1e-4)
        self.generator_optimizer = torch.optim.Adam(self.generator.parameters(), lr=1e-4, betas=(0.5, 0.9))
        self.mapping_optimizer = torch.optim.Adam(self.mapping.parameters(), lr=1e-5, amsgrad=True)

    def fake(self, count):
        return self.generator(self.mapping(torch.randn(count, 16, device=self.device)))

    def penalty(self, real, fake):
        mixed = torch.lerp(real, fake, torch.rand(len(real), 1, device=self.device)).requires_grad_()
        (slope,) = torch.autograd.grad(self.critic(mixed).sum(), mixed, create_graph=True)
        return (slope.norm(dim=1) - 1).square().mean()

    def train_critic(self):
        real = torch.randn(20, 96, device=self.device)
        fake = self.fake(20).detach()
        loss = self.critic(fake).mean() - self.critic(real).mean() + 10 * self.penalty(real, fake)
        self.critic_optimizer.zero_grad()
        loss.backward()
        self.critic_optimizer.step()

    def train_generator(self, with_mapping):
        loss = -self.critic(self.fake(20)).mean()
        self.generator_optimizer.zero_grad()
        loss.backward()
        self.generator_optimizer.step()
        # The gradients of the mapping add up until it is its turn.
        if with_mapping:
            self.mapping_optimizer.step()
            self.mapping_optimizer.zero_grad()


def main():
    torch.manual_seed(151)
    torch.set_num_threads(1)
    game = Game(sys.argv[1])
    turns = 0
    for step in range(345):
        game.train_critic()
        mapping_turn = step > 120 and step % 23 == 0
        if step % 5 == 0 or mapping_turn:
            game.train_generator(mapping_turn)
            turns += 1
    print(f"{turns} turns of the generator")


if __name__ == "__main__":
    main()
