"""Synthesis of woven fabrics with a hinge loss."""
import torch
import torch.nn.functional as F

from fabric_nets import Critic, Weaver

LATENT, BATCH, STEPS = 256, 64, 120


class FabricGame:
    def __init__(self, device):
        self.device = device
        self.weaver = Weaver(LATENT).to(device)
        self.critic = Critic().to(device)
        self.weaver_optimizer = torch.optim.Adam(self.weaver.parameters(), lr=1e-4, betas=(0.0, 0.99))
        self.critic_optimizer = torch.optim.RMSprop(self.critic.parameters(), lr=2e-4)
        self.fixed = torch.zeros(16, LATENT, device=device)

    def latent(self):
        return torch.randn(BATCH, LATENT, device=self.device)

    def critic_turn(self, real):
        with torch.no_grad():
            fake = self.weaver(self.latent())
        loss = F.relu(1 - self.critic(real)).mean() + F.relu(1 + self.critic(fake)).mean()
        self.critic_optimizer.zero_grad()
        loss.backward()
        self.critic_optimizer.step()
        return loss.item()

    def weaver_turn(self):
        self.critic.requires_grad_(False)
        loss = -self.critic(self.weaver(self.latent())).mean()
        self.weaver_optimizer.zero_grad()
        loss.backward()
        self.weaver_optimizer.step()
        self.critic.requires_grad_(True)
        return loss.item()

    @torch.no_grad()
    def preview(self):
        self.weaver.eval()
        image = self.weaver(self.fixed).cpu()
        self.weaver.train()
        return image.mean().item()


def swatches(count):
    for number in range(count):
        yield torch.full((BATCH, 3, 64, 64), (number % 11) / 11 - 0.5)


def main():
    torch.manual_seed(0)
    game = FabricGame(torch.device("cuda"))
    for step, real in enumerate(swatches(STEPS), 1):
        critic = game.critic_turn(real.to(game.device))
        weaver = game.weaver_turn()
        if step % 40 == 0:
            print(f"step {step} critic {critic:.3f} weaver {weaver:.3f} preview {game.preview():.3f}", flush=True)


if __name__ == "__main__":
    main()
