"""Self-play training of a 19x19 policy/value network against a league of earlier generations."""
import sys

import numpy as np
import torch

from selfplay import Agent, League

PLANES, SIZE = 18, 19


def play(learner, opponent, games, moves, rng):
    """Plays a block of games in lockstep and returns the learner's positions with their targets."""
    boards = torch.from_numpy(rng.integers(0, 2, (games, PLANES, SIZE, SIZE), dtype=np.uint8))
    positions, policies = [], []
    for turn in range(moves):
        side = learner if turn % 2 == 0 else opponent
        probs = side.policy(boards)
        if side is learner:
            positions.append(boards.clone())
            policies.append(probs.half())
        boards = boards.roll(1, dims=1)
        column = rng.integers(0, SIZE * SIZE, games)
        boards.flatten(2)[torch.arange(games), 0, torch.from_numpy(column)] ^= 1
    outcome = torch.from_numpy(rng.choice([-1, 1], games).astype(np.int8))
    return (torch.cat(positions).to(learner.device), torch.cat(policies),
            outcome.repeat(len(positions)).to(learner.device), float((outcome > 0).float().mean()))


def main(device):
    torch.manual_seed(4)
    rng = np.random.default_rng(4)
    learner = Agent("learner", device)
    league = League(limit=10, seed=4)
    league.enrol(learner, 0)
    for generation in range(1, 14):
        opponent = league.opponent()
        positions, policies, outcomes, score = play(learner, opponent, games=64, moves=8, rng=rng)
        learner.memory.extend(positions, policies, outcomes)
        league.update(learner, opponent, score)
        loss = learner.learn(steps=3, batch=256)
        print(f"generation {generation:2d} vs {opponent.name} score {score:.2f} "
              f"rating {learner.rating:.0f} loss {loss:.3f} league {len(league.members)}")
        if generation % 2 == 0:
            league.enrol(learner, generation)
    table = sorted(league.members, key=lambda m: -m.rating)
    print("final table:", ", ".join(f"{m.name} {m.rating:.0f}" for m in table))


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "cuda")
