"""PPO for velocity tracking with a four legged robot, all environments batched on the device."""
import sys

import torch

from quadsim import ActorCritic, QuadrupedEnv


class Rollout:
    def __init__(self, horizon, env, device):
        n = env.num_envs
        self.obs = torch.zeros(horizon, n, env.num_obs, device=device)
        self.actions = torch.zeros(horizon, n, env.num_joints, device=device)
        self.logp = torch.zeros(horizon, n, device=device)
        self.values = torch.zeros(horizon, n, device=device)
        self.rewards = torch.zeros(horizon, n, device=device)

    def put(self, t, obs, actions, logp, values, rewards):
        self.obs[t].copy_(obs.detach())
        self.actions[t].copy_(actions)
        self.logp[t].copy_(logp)
        self.values[t].copy_(values)
        self.rewards[t].copy_(rewards)

    def advantages(self, gamma=0.99, lam=0.95):
        adv = torch.zeros_like(self.rewards)
        running = torch.zeros_like(self.rewards[0])
        horizon = self.rewards.shape[0]
        for t in reversed(range(horizon)):
            nxt = self.values[t + 1] if t + 1 < horizon else self.values[t]
            delta = self.rewards[t] + gamma * nxt - self.values[t]
            running = delta + gamma * lam * running
            adv[t].copy_(running)
        return adv


def collect(env, policy, rollout, obs):
    for t in range(rollout.rewards.shape[0]):
        actions, logp, values = policy.act(obs)
        next_obs, reward, _ = env.step(actions)
        rollout.put(t, obs, actions, logp, values, reward)
        obs = next_obs
    return obs


def update(policy, opt, rollout, minibatches=4, clip=0.2):
    adv = rollout.advantages().flatten()
    returns = adv + rollout.values.flatten()
    obs = rollout.obs.flatten(0, 1)
    actions = rollout.actions.flatten(0, 1)
    old_logp = rollout.logp.flatten()
    losses = []
    for idx in torch.randperm(obs.shape[0]).to(obs.device).chunk(minibatches):
        logp, value = policy.evaluate(obs[idx], actions[idx])
        ratio = torch.exp(logp - old_logp[idx])
        a = adv[idx]
        surrogate = torch.min(ratio * a, ratio.clamp(1 - clip, 1 + clip) * a).mean()
        loss = -surrogate + 0.5 * (value - returns[idx]).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        opt.step()
        losses.append(loss.item())
    return sum(losses) / len(losses)


def main():
    device = torch.device(sys.argv[1] if len(sys.argv) > 1 else "cuda")
    torch.manual_seed(3)
    env = QuadrupedEnv(2048, device)
    policy = ActorCritic(env.num_obs, env.num_joints).to(device)
    opt = torch.optim.Adam(policy.parameters(), lr=3e-4)
    rollout = Rollout(8, env, device)
    obs = env.observe()
    for it in range(8):
        obs = collect(env, policy, rollout, obs)
        loss = update(policy, opt, rollout)
        print(f"iteration {it}: loss {loss:.4f}, device memory {torch.cuda.memory_allocated() >> 20} MiB", flush=True)


if __name__ == "__main__":
    main()
