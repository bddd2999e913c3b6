"""Euler integration of the bandwidth-extension flow."""
import torch


def odeint(func, y0, times):
    """Integrates dy/dt = func(t, y) over `times` with explicit Euler steps; one row of the result per time."""
    points = [y0]
    y = y0
    for t0, t1 in zip(times[:-1], times[1:]):
        y = y + (t1 - t0) * func(t0, y)
        points.append(y)
    return torch.stack(points, dim=0)


class FlowSolver:
    def __init__(self, field, steps=10):
        self.field = field
        self.steps = steps

    def _rhs(self, condition):
        batch = condition.shape[0]

        def rhs(t, y):
            time = torch.full((batch,), t, device=y.device)
            return self.field(y, condition, time)

        return rhs

    @torch.no_grad()
    def simulate(self, x0, condition):
        times = [i / self.steps for i in range(self.steps + 1)]
        xs = odeint(self._rhs(condition), x0, times)
        return xs[-1]
