"""PPO with an exploration bonus in procedurally generated mazes."""
import sys
import time

import torch

from explore.nets import ActorCritic, Novelty
from explore.rollout import MazeVec, RolloutBuffer
from explore.stats import RunningStats

N_ENVS, N_STEPS, N_UPDATES = 64, 48, 4
MINIBATCHES = 6
N_ACTIONS = 9


class Agent:
    def __init__(self, device):
        self.device = device
        self.net = ActorCritic(N_ACTIONS).to(device)
        self.novelty = Novelty().to(device)
        self.bonus_stats = RunningStats(device)
        params = list(self.net.parameters()) + list(self.novelty.predictor.parameters())
        self.optimizer = torch.optim.Adam(params, lr=1e-4, eps=1e-5)

    @torch.no_grad()
    def act(self, obs):
        dist, value = self.net(obs)
        action = dist.sample()
        return action, dist.log_prob(action), value

    def bonus(self, obs):
        error = self.novelty(obs)
        self.bonus_stats.update(error)
        return self.bonus_stats.scale(error).detach()

    def collect(self, env, obs, buffer):
        for step in range(N_STEPS):
            action, log_prob, value = self.act(obs)
            next_obs, reward, done = env.step(action.cpu().numpy())
            next_obs = next_obs.to(self.device)
            buffer.put(step, obs=obs, actions=action, log_probs=log_prob, values=value,
                       rewards=reward.to(self.device), dones=done.to(self.device).float(),
                       bonus=self.bonus(next_obs))
            obs = next_obs
        return obs

    def update(self, buffer):
        returns = buffer.returns().flatten()
        obs, actions = buffer.obs.flatten(0, 1), buffer.actions.flatten()
        old_log_probs, advantage = buffer.log_probs.flatten(), returns - buffer.values.flatten()
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        for index in torch.randperm(len(obs)).to(self.device).chunk(MINIBATCHES):
            dist, value = self.net(obs[index])
            ratio = (dist.log_prob(actions[index]) - old_log_probs[index]).exp()
            adv = advantage[index]
            policy_loss = -torch.min(ratio * adv, ratio.clamp(0.9, 1.1) * adv).mean()
            value_loss = (value - returns[index]).pow(2).mean()
            loss = policy_loss + 0.5 * value_loss - 0.001 * dist.entropy().mean()
            loss = loss + self.novelty(obs[index]).mean()
            self.optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.net.parameters(), 0.5)
            self.optimizer.step()
        return loss.item()


def main():
    device = torch.device(sys.argv[1] if len(sys.argv) > 1 else "cuda")
    torch.manual_seed(23)
    agent = Agent(device)
    env = MazeVec(N_ENVS, seed=23)
    buffer = RolloutBuffer(N_STEPS, N_ENVS, device)
    obs, _, _ = env.step(None)
    obs = obs.to(device)
    for update in range(N_UPDATES):
        started = time.time()
        obs = agent.collect(env, obs, buffer)
        loss = agent.update(buffer)
        frames = (update + 1) * N_ENVS * N_STEPS
        print(f"update {update}: {frames} frames, loss {loss:.4f}, {time.time() - started:.1f} s", flush=True)


if __name__ == "__main__":
    main()
