import torch


class Langevin:
    """BAOAB splitting with a per-atom mass."""

    def __init__(self, model, masses, dt=0.5, friction=0.02, kT=0.0257):
        self.model = model
        self.masses = masses[:, None]
        self.dt = dt
        self.c1 = float(torch.exp(torch.tensor(-friction * dt)))
        self.c2 = (1 - self.c1 ** 2) ** 0.5 * kT ** 0.5

    def forces(self, state):
        pos = state["positions"].detach().requires_grad_(True)
        energy = self.model(pos, state["types"], state["system"])
        force, = torch.autograd.grad(energy.sum(), pos)
        return energy.detach(), -force

    @torch.no_grad()
    def kick(self, state, force):
        state["velocities"] += 0.5 * self.dt * force / self.masses

    @torch.no_grad()
    def drift(self, state):
        state["positions"] += 0.5 * self.dt * state["velocities"]

    @torch.no_grad()
    def thermostat(self, state):
        noise = torch.randn_like(state["velocities"])
        state["velocities"].mul_(self.c1).add_(noise / self.masses.sqrt(), alpha=self.c2)

    def step(self, state):
        self.kick(state, state["forces"])
        self.drift(state)
        self.thermostat(state)
        self.drift(state)
        state["energy"], state["forces"] = self.forces(state)
        self.kick(state, state["forces"])
        return state
