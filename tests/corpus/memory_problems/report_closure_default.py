"""Kind of report: "memory leak although I delete the variables" (PyTorch forum; callbacks that bind tensors by default).

True cause: a function that is registered to run at the end of training gets the images and the reconstruction as default
arguments, which live as long as the function; `del` of the local names changes nothing.
The line: `def draw(images=images, reconstruction=reconstruction, step=step):`.
Cure: bind what is to be drawn as host copies of a few samples (images[:4].cpu()), or draw at once and keep no tensor.
"""

import torch
from torch import nn


class Reporter:
    def __init__(self):
        self.pending = []

    def at_end(self, function):
        self.pending.append(function)

    def close(self):
        return [function() for function in self.pending]


class VAE(nn.Module):
    def __init__(self, pixels=64 * 64 * 3, hidden=256, latent=32):
        super().__init__()
        self.encode = nn.Sequential(nn.Linear(pixels, hidden), nn.ReLU(), nn.Linear(hidden, 2 * latent))
        self.decode = nn.Sequential(nn.Linear(latent, hidden), nn.ReLU(), nn.Linear(hidden, pixels), nn.Sigmoid())

    def forward(self, x):
        mean, log_var = self.encode(x).chunk(2, dim=-1)
        z = mean + torch.randn_like(mean) * (0.5 * log_var).exp()
        return self.decode(z), mean, log_var


def elbo(reconstruction, x, mean, log_var):
    kl = -0.5 * (1 + log_var - mean.square() - log_var.exp()).sum(-1).mean()
    return nn.functional.mse_loss(reconstruction, x, reduction="sum") / len(x) + kl


def main():
    torch.manual_seed(29)
    device = torch.device("cuda")
    model = VAE().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    reporter = Reporter()
    pool = torch.rand(256, 64 * 64 * 3)
    for step in range(400):
        images = pool[(step * 64) % 256 :][:64].to(device)
        reconstruction, mean, log_var = model(images)
        loss = elbo(reconstruction, images, mean, log_var)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 5 == 0:

            def draw(images=images, reconstruction=reconstruction, step=step):  # CAUSE
                error = (images[:4] - reconstruction[:4]).abs().mean().item()
                return f"step {step}: {error:.3f}"

            reporter.at_end(draw)
        del images, reconstruction, loss, mean, log_var
    print("\n".join(reporter.close()[::20]))


if __name__ == "__main__":
    main()
