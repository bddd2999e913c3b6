import torch

from .actuators import load_actuators


class QuadrupedEnv:
    num_joints = 12
    decimation = 4
    dt = 0.005

    def __init__(self, num_envs, device, episode_steps=100):
        self.num_envs, self.device = num_envs, device
        self.episode_steps = episode_steps
        self.actuators = load_actuators(device)
        shape = (num_envs, self.num_joints)
        self.default_q = torch.full(shape, 0.6, device=device)
        self.q = self.default_q.clone()
        self.qd = torch.zeros(shape, device=device)
        self.base_vel = torch.zeros(num_envs, 6, device=device)
        self.gravity = torch.tensor([0.0, 0.0, -1.0], device=device).repeat(num_envs, 1)
        self.commands = torch.rand(num_envs, 3, device=device)
        self.last_actions = torch.zeros(shape, device=device)
        self.errors = [torch.zeros(shape, device=device) for _ in range(3)]
        self.velocities = [torch.zeros(shape, device=device) for _ in range(3)]
        self.clock = torch.zeros(num_envs, device=device)

    @property
    def num_obs(self):
        return 6 + 3 + 3 + 3 * self.num_joints

    def observe(self):
        return torch.cat(
            (self.base_vel, self.gravity, self.commands, self.q - self.default_q, self.qd * 0.05, self.last_actions), dim=-1
        )

    def _torques(self, targets):
        self.errors = [targets - self.q] + self.errors[:2]
        self.velocities = [self.qd] + self.velocities[:2]
        return self.actuators(self.errors, self.velocities)

    def step(self, actions):
        targets = self.default_q + 0.25 * actions
        for _ in range(self.decimation):
            torques = self._torques(targets)
            self.qd = self.qd + self.dt * (40.0 * torques - 0.5 * self.qd)
            self.q = self.q + self.dt * self.qd
        push = self.qd.view(self.num_envs, 6, 2).mean(-1)
        self.base_vel = 0.95 * self.base_vel + 0.05 * push
        self.last_actions = actions
        self.clock += 1
        reward = self._reward(torques)
        done = self.clock >= self.episode_steps
        self._reset(done)
        return self.observe(), reward, done

    def _reward(self, torques):
        tracking = torch.exp(-((self.base_vel[:, :3] - self.commands) ** 2).sum(-1) / 0.25)
        effort = 1e-4 * (torques.detach() ** 2).sum(-1)
        return tracking.detach() - effort

    def _reset(self, done):
        mask = done.unsqueeze(-1)
        self.q = torch.where(mask, self.default_q, self.q)
        self.qd = torch.where(mask, torch.zeros_like(self.qd), self.qd)
        self.clock = torch.where(done, torch.zeros_like(self.clock), self.clock)
