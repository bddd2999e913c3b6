"""Trains a GAN whose discriminator also sees generated images from a pool of the last eighty, as CycleGAN does."""

import random
import sys

import torch
from torch import nn


class ImagePool:
    def __init__(self, size):
        self.size = size
        self.images = []
        self.rng = random.Random(12)

    def query(self, images):
        answer = []
        for image in images.detach():
            if len(self.images) < self.size:
                self.images.append(image.clone())
                answer.append(image)
            elif self.rng.random() < 0.5:
                place = self.rng.randrange(self.size)
                answer.append(self.images[place])
                self.images[place] = image.clone()
            else:
                answer.append(image)
        return torch.stack(answer)


def main():
    device = sys.argv[1]
    torch.manual_seed(12)
    torch.set_num_threads(1)
    generator = nn.Sequential(nn.Linear(12, 48), nn.ReLU(), nn.Linear(48, 1024)).to(device)
    discriminator = nn.Sequential(nn.Linear(1024, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1)).to(device)
    g_optimizer = torch.optim.Adam(generator.parameters(), lr=1e-3)
    d_optimizer = torch.optim.Adam(discriminator.parameters(), lr=1e-3)
    pool = ImagePool(80)
    for _ in range(150):
        fake = generator(torch.randn(2, 12, device=device))
        g_loss = (discriminator(fake) - 1).square().mean()
        g_optimizer.zero_grad()
        g_loss.backward()
        g_optimizer.step()
        real = torch.randn(2, 1024, device=device)
        d_loss = (discriminator(real) - 1).square().mean() + discriminator(pool.query(fake)).square().mean()
        d_optimizer.zero_grad()
        d_loss.backward()
        d_optimizer.step()
    print(len(pool.images), "images in the pool")


if __name__ == "__main__":
    main()
