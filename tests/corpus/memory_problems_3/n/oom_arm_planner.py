import sys
import time
from dataclasses import dataclass

import torch

from armkit.kinematics import SerialArm
from armkit.solver import TransposeSolver


@dataclass
class Cell:
    name: str
    waypoints: int
    seeds: int


CELLS = [
    Cell("calibration", waypoints=8, seeds=16),
    Cell("pick", waypoints=16, seeds=16),
    Cell("place", waypoints=24, seeds=16),
    Cell("weld seam", waypoints=160, seeds=16),
]


def workspace_goals(arm, count, generator, device):
    q = (torch.rand(count, arm.dof, generator=generator) - 0.5) * 3.0
    return arm(q.to(device))


def initial_guesses(arm, goals, seeds, generator, device):
    guesses = (torch.rand(goals.shape[0] * seeds, arm.dof, generator=generator) - 0.5) * 4.0
    return guesses.to(device), goals.repeat_interleave(seeds, dim=0)


def best_per_goal(q, residual, seeds):
    residual = residual.view(-1, seeds)
    best = residual.argmin(dim=1).clamp(0, seeds - 1)
    q = q.view(-1, seeds, q.shape[-1])
    return q.gather(1, best.view(-1, 1, 1).expand(-1, 1, q.shape[-1])).squeeze(1)


def smooth(path, passes=4):
    for _ in range(passes):
        inner = 0.25 * path[:-2] + 0.5 * path[1:-1] + 0.25 * path[2:]
        path = torch.cat([path[:1], inner, path[-1:]])
    return path


def plan(cell, arm, solver, generator, device):
    goals = workspace_goals(arm, cell.waypoints, generator, device)
    q, targets = initial_guesses(arm, goals, cell.seeds, generator, device)
    q, residual = solver.solve(q, targets)
    path = best_per_goal(q, residual, cell.seeds)
    return smooth(path)


def main():
    device = torch.device(sys.argv[1] if len(sys.argv) > 1 else "cuda")
    torch.manual_seed(11)
    generator = torch.Generator().manual_seed(11)
    arm = SerialArm().to(device)
    solver = TransposeSolver(arm)
    program = {}
    with torch.no_grad():
        for cell in CELLS:
            started = time.time()
            path = plan(cell, arm, solver, generator, device)
            program[cell.name] = path.cpu()
            print(f"{cell.name:12s} {cell.waypoints:4d} waypoints, {cell.seeds} seeds: "
                  f"{tuple(path.shape)} in {time.time() - started:.2f}s", flush=True)
    total = sum(p.shape[0] for p in program.values())
    print(f"program ready: {len(program)} cells, {total} joint targets")


if __name__ == "__main__":
    main()
