import numpy as np
import torch


class MazeVec:
    """Vectorised first-person maze; frames are stacked on the channel axis."""

    def __init__(self, n_envs, seed):
        self.rng = np.random.default_rng(seed)
        self.frames = np.zeros((n_envs, 4, 84, 84), dtype=np.uint8)
        self.textures = self.rng.integers(0, 255, (64, 84, 84), dtype=np.uint8)

    def step(self, actions):
        n = len(self.frames)
        self.frames[:, :-1] = self.frames[:, 1:]
        self.frames[:, -1] = self.textures[self.rng.integers(0, 64, n)]
        reward = (self.rng.random(n) < 0.002).astype(np.float32)
        done = self.rng.random(n) < 0.01
        return torch.from_numpy(self.frames), torch.from_numpy(reward), torch.from_numpy(done)


class RolloutBuffer:
    def __init__(self, n_steps, n_envs, device):
        self.obs = torch.zeros(n_steps, n_envs, 4, 84, 84, dtype=torch.uint8, device=device)
        self.actions = torch.zeros(n_steps, n_envs, dtype=torch.long, device=device)
        for name in ("log_probs", "values", "rewards", "bonus", "dones"):
            setattr(self, name, torch.zeros(n_steps, n_envs, device=device))

    def put(self, step, **entries):
        for name, value in entries.items():
            getattr(self, name)[step] = value

    def returns(self, gamma=0.99, bonus_weight=0.5):
        reward = self.rewards + bonus_weight * self.bonus
        out = torch.zeros_like(reward)
        running = torch.zeros_like(reward[0])
        for t in reversed(range(len(reward))):
            running = reward[t] + gamma * running * (1 - self.dones[t])
            out[t] = running
        return out
