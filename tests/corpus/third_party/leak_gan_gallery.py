"""Trains a toy GAN and renders the generator's progress from time to time.

The rendered samples go to a gallery on the device that is shown at the end and grows all the while.
"""

import sys

import torch
from torch import nn

import pytorch_alloctrace as alloctrace


class Gallery:
    def __init__(self, generator, latent):
        self.generator = generator
        self.latent = latent
        self.pages = []

    @torch.no_grad()
    def render(self):
        page = self.generator(self.latent)  # LEAK
        self.pages.append(page)  # LEAK


def main():
    device = sys.argv[1]
    torch.manual_seed(8)
    torch.set_num_threads(1)
    generator = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 256), nn.Tanh()).to(device)
    critic = nn.Sequential(nn.Linear(256, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1)).to(device)
    g_optimizer = torch.optim.Adam(generator.parameters(), lr=2e-4, betas=(0.5, 0.99))
    d_optimizer = torch.optim.Adam(critic.parameters(), lr=2e-4, betas=(0.5, 0.99))
    gallery = Gallery(generator, torch.randn(64, 16, device=device))
    bce = nn.functional.binary_cross_entropy_with_logits
    for step in range(260):
        real = torch.randn(32, 256, device=device).clamp(-1, 1)
        fake = generator(torch.randn(32, 16, device=device))
        real_score, fake_score = critic(real), critic(fake.detach())
        d_loss = bce(real_score, torch.ones_like(real_score)) + bce(fake_score, torch.zeros_like(fake_score))
        d_optimizer.zero_grad()
        d_loss.backward()
        d_optimizer.step()
        score = critic(fake)
        g_loss = bce(score, torch.ones_like(score))
        g_optimizer.zero_grad()
        g_loss.backward()
        g_optimizer.step()
        if step % 5 == 0:
            gallery.render()  # LEAK
        alloctrace.step()
    print("pages in the gallery:", len(gallery.pages))


if __name__ == "__main__":
    main()
