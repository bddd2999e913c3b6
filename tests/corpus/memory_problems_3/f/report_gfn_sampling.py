"""Trajectory balance for fragment based molecule design."""
import random
from dataclasses import dataclass

import torch

from gfn.models import BindingProxy, FragmentPolicy
from gfn.replay import ReplayBuffer


@dataclass
class Config:
    n_fragments: int = 72
    max_len: int = 6
    online: int = 48
    replayed: int = 16
    num_training_steps: int = 120
    capacity: int = 20_000
    warmup: int = 96
    lr: float = 1e-4
    device: str = "cuda"
    print_every: int = 40


class Trainer:
    def __init__(self, cfg):
        self.cfg = cfg
        self.rng = random.Random(3)
        self.policy = FragmentPolicy(cfg.n_fragments).to(cfg.device)
        self.proxy = BindingProxy(cfg.n_fragments).to(cfg.device)
        self.opt = torch.optim.Adam(self.policy.parameters(), cfg.lr)
        self.replay = ReplayBuffer(cfg.capacity, cfg.warmup)

    def rollout(self, n):
        cfg = self.cfg
        states, actions = [], []
        state = torch.zeros(n, cfg.n_fragments)
        for _ in range(cfg.max_len):
            states.append(state)
            picks = torch.tensor([self.rng.randrange(cfg.n_fragments) for _ in range(n)])
            actions.append(picks)
            state = state.clone()
            state[torch.arange(n), picks] += 1.0
        return torch.stack(states, 1), torch.stack(actions, 1), state

    def rewards(self, molecules):
        score = self.proxy(molecules)
        similarity = molecules.clamp(max=1).mean(-1)
        return score.sigmoid() * 8.0 + similarity

    def loss(self, states, actions, log_rewards):
        log_p = self.policy(states).gather(-1, actions.unsqueeze(-1)).squeeze(-1)
        log_z = self.policy.log_z(torch.ones(1, 1, device=states.device)).squeeze()
        return (log_z + log_p.sum(1) - log_rewards).pow(2).mean()

    def step(self):
        cfg = self.cfg
        states, actions, molecules = (t.to(cfg.device) for t in self.rollout(cfg.online))
        flat_rewards = self.rewards(molecules)
        log_rewards = flat_rewards.clamp(min=1e-4).log()
        for i in range(cfg.online):
            self.replay.push(states[i], actions[i], log_rewards[i])
        if len(self.replay) > cfg.warmup:
            s, a, r = self.replay.sample(cfg.replayed)
            states = torch.cat([states, torch.stack(s).to(cfg.device)])
            actions = torch.cat([actions, torch.stack(a).to(cfg.device)])
            log_rewards = torch.cat([log_rewards, torch.stack(r).to(cfg.device)])
        loss = self.loss(states, actions, log_rewards.detach())
        self.opt.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.policy.parameters(), 10.0)
        self.opt.step()
        return loss.item()

    def run(self):
        for it in range(1, self.cfg.num_training_steps + 1):
            loss = self.step()
            if it % self.cfg.print_every == 0:
                print(f"iteration {it} : loss {loss:.3f} replay {len(self.replay)}")


def main():
    torch.manual_seed(0)
    Trainer(Config()).run()


if __name__ == "__main__":
    main()
