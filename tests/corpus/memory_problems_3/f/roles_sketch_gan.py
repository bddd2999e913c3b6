"""Least squares GAN on sketches."""
import torch
import torch.nn as nn

from membook import PeakWatch, gradients, optimizer_tensors, report, storage_bytes

LATENT, BATCH, STEPS = 128, 64, 20


class Generator(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.fc = nn.Linear(LATENT, 4 * width * 8 * 8)
        self.width = width

        def up(cin, cout):
            return nn.Sequential(nn.Upsample(scale_factor=2), nn.Conv2d(cin, cout, 3, padding=1),
                                 nn.BatchNorm2d(cout), nn.ReLU(inplace=True))

        self.net = nn.Sequential(up(4 * width, 2 * width), up(2 * width, width), nn.Conv2d(width, 1, 3, padding=1))

    def forward(self, z):
        return torch.tanh(self.net(self.fc(z).view(-1, 4 * self.width, 8, 8)))


class Discriminator(nn.Module):
    def __init__(self, width=64):
        super().__init__()

        def down(cin, cout):
            return nn.Sequential(nn.Conv2d(cin, cout, 4, stride=2, padding=1), nn.LeakyReLU(0.2))

        self.net = nn.Sequential(down(1, width), down(width, 2 * width), down(2 * width, 4 * width))
        self.score = nn.Linear(4 * width * 4 * 4, 1)

    def forward(self, x):
        return self.score(self.net(x).flatten(1))


class Gan:
    def __init__(self):
        self.g = Generator().cuda()
        self.d = Discriminator().cuda()
        self.opt_g = torch.optim.Adam(self.g.parameters(), 2e-4, betas=(0.5, 0.999))
        self.opt_d = torch.optim.Adam(self.d.parameters(), 2e-4, betas=(0.5, 0.999))
        self.watch = PeakWatch()

    def d_loss(self, real):
        with torch.no_grad():
            fake = self.g(torch.randn(len(real), LATENT).cuda())
        return 0.5 * ((self.d(real) - 1).pow(2).mean() + self.d(fake).pow(2).mean())

    def g_loss(self, n):
        return 0.5 * (self.d(self.g(torch.randn(n, LATENT).cuda())) - 1).pow(2).mean()

    def d_step(self, step, real):
        self.opt_d.zero_grad()
        loss = self.d_loss(real)
        self.watch.check(step, "discriminator forward")
        loss.backward()
        self.watch.check(step, "discriminator backward")
        self.opt_d.step()
        self.watch.check(step, "discriminator optimizer step")

    def g_step(self, step, real):
        self.opt_g.zero_grad()
        loss = self.g_loss(len(real))
        self.watch.check(step, "generator forward")
        loss.backward()
        self.watch.check(step, "generator backward")
        sizes = self.account([real]) if step == 15 else None
        self.opt_g.step()
        self.watch.check(step, "generator optimizer step")
        return sizes

    def account(self, batch):
        return {
            "parameters": storage_bytes([*self.g.parameters(), *self.d.parameters()]),
            "buffers": storage_bytes([*self.g.buffers(), *self.d.buffers()]),
            "gradients": storage_bytes(gradients(self.g, self.d)),
            "optimizer state": storage_bytes(optimizer_tensors(self.opt_g, self.opt_d)),
            "activations": 0,
            "inputs": storage_bytes(batch),
        }


def sketches(seed=3):
    g = torch.Generator().manual_seed(seed)
    while True:
        yield (torch.rand(BATCH, 1, 32, 32, generator=g) > 0.9).float() * 2 - 1


def main():
    torch.manual_seed(3)
    gan = Gan()
    result = None
    for step, real in zip(range(1, STEPS + 1), sketches()):
        real = real.cuda()
        gan.d_step(step, real)
        result = gan.g_step(step, real) or result
    report(gan.watch, result)


if __name__ == "__main__":
    main()
