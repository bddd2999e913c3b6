import torch
import torch.nn as nn


def conv_trunk(channels=4):
    return nn.Sequential(
        nn.Conv2d(channels, 32, 8, 4), nn.LeakyReLU(),
        nn.Conv2d(32, 64, 4, 2), nn.LeakyReLU(),
        nn.Conv2d(64, 64, 3, 1), nn.LeakyReLU(),
        nn.Flatten(),
    )


class ActorCritic(nn.Module):
    def __init__(self, n_actions):
        super().__init__()
        self.trunk = conv_trunk()
        self.fc = nn.Sequential(nn.Linear(64 * 7 * 7, 448), nn.ReLU())
        self.policy = nn.Linear(448, n_actions)
        self.value = nn.Linear(448, 1)

    def forward(self, obs):
        h = self.fc(self.trunk(obs.float() / 255))
        return torch.distributions.Categorical(logits=self.policy(h), validate_args=False), self.value(h).squeeze(-1)


class Novelty(nn.Module):
    """Error of a trained predictor against a fixed random network."""

    def __init__(self, out_dim=512):
        super().__init__()
        self.target = nn.Sequential(conv_trunk(1), nn.Linear(64 * 7 * 7, out_dim)).requires_grad_(False)
        self.predictor = nn.Sequential(
            conv_trunk(1), nn.Linear(64 * 7 * 7, 512), nn.ReLU(), nn.Linear(512, out_dim))

    def forward(self, obs):
        last = obs[:, -1:].float() / 255
        return (self.predictor(last) - self.target(last)).pow(2).mean(dim=-1)
