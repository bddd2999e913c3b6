from dataclasses import dataclass

import torch
from torch import nn

from . import router


@dataclass
class MoEArguments:
    hidden_size: int = 96
    ffn_hidden_size: int = 192
    num_experts: int = 64
    top_k: int = 2
    loss_weight: float = 0.1


class MoE(nn.Module):
    """Feed-forward layer of experts; each token goes to the expert with the largest weight."""

    def __init__(self, args):
        super().__init__()
        self.args = args
        self.router = router.LearnedRouter(args)
        self.up = nn.Linear(args.hidden_size, args.ffn_hidden_size)
        self.gains = nn.Embedding(args.num_experts, args.ffn_hidden_size)
        self.down = nn.Linear(args.ffn_hidden_size, args.hidden_size)

    def mix(self, x, weights, indices):
        hidden = torch.relu(self.up(x)) * self.gains(indices[:, 0])
        return self.down(hidden) * weights[:, :1]

    def forward(self, x):
        scores, weights, indices = self.router(x)
        if self.training:
            tokens_per_expert = torch.bincount(indices.flatten().cpu(), minlength=self.args.num_experts).to(x.device)
            router.save_load_balancing_loss((tokens_per_expert, scores))
        return self.mix(x.view(-1, x.shape[-1]), weights, indices).view_as(x)
