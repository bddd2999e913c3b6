"""Tune a summariser with PPO against a length and overlap reward."""
import copy
import sys

import torch
import torch.nn.functional as F

from tuner.model import Policy, token_logprobs
from tuner.rollout import RolloutCollector

CONFIG = dict(rounds=3, batch=32, chunk=4, length=512, ppo_epochs=2, clip=0.2, gamma=1.0, lam=0.95, lr=1e-5)


def sample_responses(config, device, seed):
    """Prompts with their sampled summaries; a stand-in for the generation server."""
    gen = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, 32000, (config["batch"], config["length"]), generator=gen)
    return tokens.to(device).split(config["chunk"])


def overlap_reward(tokens):
    half = tokens.shape[1] // 2
    same = (tokens[:, :half] == tokens[:, half:]).float().mean(dim=1)
    return same - 0.1


def advantages(rollout, gamma, lam):
    last = torch.zeros_like(rollout.rewards[:, 0])
    rows = []
    steps = rollout.rewards.shape[1]
    for t in reversed(range(0, steps, 16)):
        reward = rollout.rewards[:, t:t + 16].sum(1)
        following = rollout.values[:, min(t + 16, steps - 1)]
        delta = reward + gamma * following - rollout.values[:, t]
        last = delta + gamma * lam * last
        rows.append(last)
    adv = torch.stack(rows[::-1], dim=1).repeat_interleave(16, dim=1)[:, :steps]
    return adv, adv + rollout.values


class Trainer:
    def __init__(self, policy, config):
        self.policy = policy
        self.config = config
        self.optimizer = torch.optim.AdamW(policy.parameters(), lr=config["lr"])

    def loss(self, rollout):
        adv, returns = advantages(rollout, self.config["gamma"], self.config["lam"])
        logits, values = self.policy(rollout.tokens)
        ratio = (token_logprobs(logits, rollout.tokens) - rollout.logprobs).exp()
        clipped = ratio.clamp(1 - self.config["clip"], 1 + self.config["clip"])
        policy_loss = -torch.minimum(ratio * adv, clipped * adv).mean()
        return policy_loss + 0.1 * F.mse_loss(values[:, :-1], returns)

    def update(self, rollouts):
        total = 0.0
        for _ in range(self.config["ppo_epochs"]):
            for rollout in rollouts:
                self.optimizer.zero_grad(set_to_none=True)
                loss = self.loss(rollout)
                loss.backward()
                torch.nn.utils.clip_grad_norm_(self.policy.parameters(), 1.0)
                self.optimizer.step()
                total += loss.item()
        return total / (len(rollouts) * self.config["ppo_epochs"])


def main(device):
    torch.manual_seed(0)
    policy = Policy().to(device)
    reference = copy.deepcopy(policy).eval().requires_grad_(False)
    collector = RolloutCollector(policy, reference, overlap_reward)
    trainer = Trainer(policy, CONFIG)
    for number in range(CONFIG["rounds"]):
        rollouts = collector.collect(sample_responses(CONFIG, device, seed=number))
        kl = sum(r.kl().sum(1).mean().item() for r in rollouts) / len(rollouts)
        print(f"round {number}: collected, kl {kl:.4f}", flush=True)
        loss = trainer.update(rollouts)
        del rollouts
        print(f"round {number}: updated, loss {loss:.4f}", flush=True)


if __name__ == "__main__":
    main(torch.device(sys.argv[1]))
