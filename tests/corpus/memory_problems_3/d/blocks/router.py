import torch
from torch import nn

_LOAD_BALANCING_LOSS = []


def save_load_balancing_loss(loss):
    _LOAD_BALANCING_LOSS.append(loss)


def get_load_balancing_loss():
    return _LOAD_BALANCING_LOSS


def clear_load_balancing_loss():
    _LOAD_BALANCING_LOSS.clear()


class LearnedRouter(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.top_k = args.top_k
        self.layer = nn.Linear(args.hidden_size, args.num_experts, bias=False)

    def forward(self, x):
        scores = self.layer(x.view(-1, x.shape[-1])).softmax(dim=-1)
        weights, indices = torch.topk(scores, self.top_k, dim=-1)
        return scores, weights, indices
