"""Self-play actor-critic training against a league of earlier policies."""
import sys

import torch
import torch.nn.functional as F

from arena.league import League
from arena.policy import BoardPolicy
from arena.runtime import StepClock, configure


class BoardGame:
    """Batched two-player placement game; all state lives in tensors."""

    def __init__(self, games, device, board=11, planes=8):
        self.shape = (games, planes, board, board)
        self.device = device
        self.state = torch.zeros(self.shape, device=device)

    def reset(self):
        self.state.zero_()
        return self.state

    def place(self, action, side):
        flat = self.state.flatten(2)
        cell = (action * 5 + 3) % flat.shape[-1]
        flat[:, side].scatter_(1, cell[:, None], 1.0)
        flat[:, 2 + side * 3:5 + side * 3].mul_(0.5)
        return self.state.clone(), flat[:, side].mean(-1) - flat[:, 1 - side].mean(-1)


def sample(logits):
    return torch.multinomial(F.softmax(logits, dim=-1), 1).squeeze(-1)


def rollout(game, policy, opponent, horizon):
    steps = []
    planes = game.reset().clone()
    with torch.no_grad():
        for _ in range(horizon):
            logits, = policy(planes, wanted=("move",))
            action = sample(logits)
            after, reward = game.place(action, 0)
            steps.append((planes, action, reward))
            reply, = opponent(after.flip(1), wanted=("move",))
            planes, _ = game.place(sample(reply), 1)
    return steps


def returns(steps, gamma=0.97):
    total, out = 0.0, []
    for _, _, reward in reversed(steps):
        total = reward + gamma * total
        out.append(total)
    return out[::-1]


def improve(policy, optimizer, steps):
    planes = torch.cat([s[0] for s in steps])
    actions = torch.cat([s[1] for s in steps])
    target = torch.cat(returns(steps))
    logits, value = policy(planes)
    chosen = F.log_softmax(logits, -1).gather(1, actions[:, None]).squeeze(1)
    loss = -(chosen * (target - value.detach())).mean() + 0.5 * F.mse_loss(value, target)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


def main():
    device = torch.device(sys.argv[1] if len(sys.argv) > 1 else "cuda")
    rng = configure(8)
    clock = StepClock()
    with device:
        policy = BoardPolicy(width=1024)
    optimizer = torch.optim.Adam(policy.parameters(), lr=2e-4)
    league = League(capacity=4, rng=rng)
    game = BoardGame(64, device)
    league.admit(policy)
    for iteration in range(80):
        generation, opponent = league.opponent()
        loss = improve(policy, optimizer, rollout(game, policy, opponent, horizon=4))
        clock.tick()
        if iteration % 2 == 1:
            league.admit(policy)
        if iteration % 20 == 0:
            print(f"iteration {iteration:3d} vs generation {generation:2d} loss {loss:.4f}", flush=True)
    print("league size", len(league.members))


if __name__ == "__main__":
    main()
