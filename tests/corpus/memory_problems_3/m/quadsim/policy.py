import torch
from torch import nn


def mlp(sizes):
    layers = []
    for a, b in zip(sizes[:-2], sizes[1:-1]):
        layers += [nn.Linear(a, b), nn.ELU()]
    return nn.Sequential(*layers, nn.Linear(sizes[-2], sizes[-1]))


class ActorCritic(nn.Module):
    def __init__(self, num_obs, num_actions):
        super().__init__()
        self.actor = mlp([num_obs, 256, 128, num_actions])
        self.critic = mlp([num_obs, 256, 128, 1])
        self.log_std = nn.Parameter(torch.zeros(num_actions))

    @torch.no_grad()
    def act(self, obs):
        mean = self.actor(obs)
        actions = mean + self.log_std.exp() * torch.randn_like(mean)
        return actions, self.log_prob(mean, actions), self.critic(obs).squeeze(-1)

    def log_prob(self, mean, actions):
        z = (actions - mean) / self.log_std.exp()
        return (-0.5 * z * z - self.log_std).sum(-1)

    def evaluate(self, obs, actions):
        mean = self.actor(obs)
        return self.log_prob(mean, actions), self.critic(obs).squeeze(-1)
