from dataclasses import dataclass

import torch

from .model import token_logprobs


@dataclass
class Rollout:
    tokens: torch.Tensor
    logits: torch.Tensor
    ref_logits: torch.Tensor
    logprobs: torch.Tensor
    ref_logprobs: torch.Tensor
    values: torch.Tensor
    rewards: torch.Tensor

    def kl(self):
        return self.logprobs - self.ref_logprobs


class RolloutCollector:
    def __init__(self, policy, reference, scorer, kl_weight=0.05):
        self.policy = policy
        self.reference = reference
        self.scorer = scorer
        self.kl_weight = kl_weight

    @torch.no_grad()
    def score(self, tokens):
        logits, values = self.policy(tokens)
        ref_logits, _ = self.reference(tokens)
        logprobs = token_logprobs(logits, tokens)
        ref_logprobs = token_logprobs(ref_logits, tokens)
        rewards = -self.kl_weight * (logprobs - ref_logprobs)
        rewards[:, -1] += self.scorer(tokens)
        return Rollout(tokens, logits, ref_logits, logprobs, ref_logprobs, values[:, :-1], rewards)

    def collect(self, batches):
        return [self.score(tokens) for tokens in batches]
