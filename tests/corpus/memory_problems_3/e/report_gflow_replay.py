"""GFlowNet for molecule fragments: sample trajectories, mix with replayed ones, trajectory balance loss."""
import random
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import nn


class FragmentPolicy(nn.Module):
    """Graph transformer stand-in: attention over fragments, logits over fragment types."""

    def __init__(self, fragments=72, emb=256, layers=3, heads=4):
        super().__init__()
        self.embed = nn.Embedding(fragments + 1, emb)
        layer = nn.TransformerEncoderLayer(emb, heads, 2 * emb, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers)
        self.logits = nn.Linear(emb, fragments)
        self.log_z = nn.Linear(8, 1)

    def forward(self, states, cond):
        h = self.encoder(self.embed(states))
        return F.log_softmax(self.logits(h), dim=-1), self.log_z(cond).squeeze(-1)


class Task:
    """Reward and the temperature on which the policy is conditioned."""

    def __init__(self, rng):
        self.rng = rng

    def sample_conditional(self, n):
        beta = torch.tensor([self.rng.gammavariate(2.0, 16.0) for _ in range(n)])
        edges = torch.linspace(0, 64, 8)
        return torch.sigmoid((beta[:, None] - edges[None]) / 4.0)

    def reward(self, n):
        return torch.tensor([self.rng.uniform(-6.0, 0.0) for _ in range(n)])


class ReplayBuffer:
    def __init__(self, capacity, warmup, rng):
        self.capacity, self.warmup, self.rng = capacity, warmup, rng
        self.buffer = []
        self.position = 0

    def push(self, *args):
        if len(self.buffer) < self.capacity:
            self.buffer.append(None)
        self.buffer[self.position] = args
        self.position = (self.position + 1) % self.capacity

    def sample(self, n):
        rows = [self.buffer[self.rng.randrange(len(self.buffer))] for _ in range(n)]
        return [torch.stack([r[i] for r in rows]) for i in range(len(rows[0]))]

    def __len__(self):
        return len(self.buffer)


class TrajectoryBalance:
    def __init__(self, policy, device):
        self.policy, self.device = policy, device

    def create_training_data(self, cond, max_nodes):
        """Sample one trajectory for each row of cond, with its log probability under the sampling policy."""
        n = cond.shape[0]
        states = torch.randint(0, 72, (n, max_nodes), device=self.device)
        logp, _ = self.policy(states, cond)
        chosen = logp.gather(-1, states.unsqueeze(-1)).squeeze(-1)
        return states, chosen.sum(dim=1)

    def compute_loss(self, states, cond, log_reward):
        logp, log_z = self.policy(states, cond)
        forward = logp.gather(-1, states.unsqueeze(-1)).squeeze(-1).sum(dim=1)
        return (log_z + forward - log_reward).pow(2).mean()


def main():
    cfg = SimpleNamespace(steps=80, online=32, replay=32, capacity=4000, warmup=128, max_nodes=24, lr=1e-4)
    rng = random.Random(7)
    device = torch.device("cuda")
    policy = FragmentPolicy().to(device)
    algo, task = TrajectoryBalance(policy, device), Task(rng)
    replay = ReplayBuffer(cfg.capacity, cfg.warmup, rng)
    opt = torch.optim.Adam(policy.parameters(), lr=cfg.lr)
    for step in range(cfg.steps):
        cond = task.sample_conditional(cfg.online).to(device)
        states, sampled_logp = algo.create_training_data(cond, cfg.max_nodes)
        log_reward = task.reward(cfg.online).to(device)
        for i in range(cfg.online):
            replay.push(states[i], cond[i], log_reward[i], sampled_logp[i])
        if len(replay) >= cfg.warmup:
            r_states, r_cond, r_reward, r_logp = replay.sample(cfg.replay)
            states = torch.cat([states, r_states])
            cond = torch.cat([cond, r_cond])
            log_reward = torch.cat([log_reward, r_reward])
        loss = algo.compute_loss(states, cond, log_reward)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(policy.parameters(), 10.0)
        opt.step()
        if step % 20 == 0:
            print(f"iteration {step}: loss {loss.item():.3f} replay {len(replay)}")


if __name__ == "__main__":
    main()
