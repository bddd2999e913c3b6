"""Generator and critic of the woven fabric synthesis."""
import torch
from torch import nn


class Weaver(nn.Module):
    def __init__(self, latent=256, width=512):
        super().__init__()
        self.start = nn.Linear(latent, width * 16)
        self.width = width
        steps, cin = [], width
        for cout in (512, 256, 128, 64):
            steps += [nn.ConvTranspose2d(cin, cout, 4, stride=2, padding=1), nn.BatchNorm2d(cout), nn.ReLU()]
            cin = cout
        self.steps = nn.Sequential(*steps)
        self.rgb = nn.Conv2d(cin, 3, 3, padding=1)

    def forward(self, latent):
        x = self.start(latent).view(-1, self.width, 4, 4)
        return torch.tanh(self.rgb(self.steps(x)))


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        layers, cin = [], 3
        for cout in (64, 128, 256, 512):
            layers += [nn.Conv2d(cin, cout, 4, stride=2, padding=1), nn.LeakyReLU(0.2)]
            cin = cout
        self.layers = nn.Sequential(*layers)
        self.last = nn.Sequential(nn.Flatten(), nn.Linear(512 * 16, 1024), nn.LeakyReLU(0.2), nn.Linear(1024, 1))

    def forward(self, image):
        return self.last(self.layers(image))
