"""Aerial images from maps: a conditional GAN with one optimizer for each side."""
from dataclasses import dataclass

import torch
from torch import nn


@dataclass
class Options:
    size: int = 256
    batch: int = 8
    steps: int = 40
    weight_l1: float = 100.0
    generator_width: int = 64
    critic_width: int = 64


def down(inputs, outputs, norm=True):
    layers = [nn.Conv2d(inputs, outputs, 4, stride=2, padding=1, bias=not norm)]
    if norm:
        layers.append(nn.BatchNorm2d(outputs))
    return nn.Sequential(*layers, nn.LeakyReLU(0.2))


def up(inputs, outputs):
    return nn.Sequential(nn.ConvTranspose2d(inputs, outputs, 4, stride=2, padding=1, bias=False),
                         nn.BatchNorm2d(outputs), nn.ReLU())


class Generator(nn.Module):
    def __init__(self, width):
        super().__init__()
        sizes = [width, 2 * width, 4 * width, 8 * width, 8 * width, 8 * width]
        self.encoder = nn.ModuleList(down(i, o, norm=n > 0) for n, (i, o) in enumerate(zip([3, *sizes], sizes)))
        reverse = sizes[::-1]
        self.decoder = nn.ModuleList(
            up(i if n == 0 else 2 * i, o) for n, (i, o) in enumerate(zip(reverse, reverse[1:]))
        )
        self.out = nn.ConvTranspose2d(2 * width, 3, 4, stride=2, padding=1)

    def forward(self, x):
        skips = []
        for layer in self.encoder:
            x = layer(x)
            skips.append(x)
        x = skips.pop()
        for layer in self.decoder:
            x = torch.cat([layer(x), skips.pop()], dim=1)
        return torch.tanh(self.out(x))


class Critic(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.layers = nn.Sequential(down(6, width, norm=False), down(width, 2 * width), down(2 * width, 4 * width),
                                    down(4 * width, 8 * width), nn.Conv2d(8 * width, 1, 4, padding=1))

    def forward(self, maps, photos):
        return self.layers(torch.cat([maps, photos], dim=1))


def toggle(network, trainable):
    for parameter in network.parameters():
        parameter.requires_grad_(trainable)


def train(options):
    generator, critic = Generator(options.generator_width).cuda(), Critic(options.critic_width).cuda()
    generator_optimizer = torch.optim.Adam(generator.parameters(), lr=2e-4, betas=(0.5, 0.999), foreach=True)
    critic_optimizer = torch.optim.Adam(critic.parameters(), lr=2e-4, betas=(0.5, 0.999), foreach=True)
    adversarial = nn.BCEWithLogitsLoss()
    for step in range(options.steps):
        maps = torch.zeros(options.batch, 3, options.size, options.size).cuda()
        photos = torch.zeros(options.batch, 3, options.size, options.size).cuda()

        toggle(critic, True)
        critic_optimizer.zero_grad(set_to_none=True)
        with torch.no_grad():
            fake = generator(maps)
        real_scores, fake_scores = critic(maps, photos), critic(maps, fake)
        critic_loss = 0.5 * (adversarial(real_scores, torch.ones_like(real_scores))
                             + adversarial(fake_scores, torch.zeros_like(fake_scores)))
        critic_loss.backward()
        critic_optimizer.step()

        toggle(critic, False)
        generator_optimizer.zero_grad(set_to_none=True)
        fake = generator(maps)
        scores = critic(maps, fake)
        loss = adversarial(scores, torch.ones_like(scores)) + options.weight_l1 * (fake - photos).abs().mean()
        loss.backward()
        generator_optimizer.step()
        if step % 10 == 0:
            print(f"step {step}: critic {critic_loss.item():.4f}, generator {loss.item():.4f}")


if __name__ == "__main__":
    train(Options())
