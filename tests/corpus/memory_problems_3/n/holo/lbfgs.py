from collections import deque

import torch


class LBFGS:
    """Limited memory BFGS with a fixed step length, for one tensor."""

    def __init__(self, variable, lr=1.0, history=100):
        self.variable = variable
        self.lr = lr
        self.steps = deque(maxlen=history)
        self.changes = deque(maxlen=history)
        self.rho = deque(maxlen=history)
        self.gradient = None
        self.update = None

    def remember(self, gradient):
        change = gradient - self.gradient
        curvature = torch.dot(change.flatten(), self.update.flatten())
        self.steps.append(self.update)
        self.changes.append(change)
        self.rho.append(1.0 / curvature.clamp(min=1e-10))

    def direction(self, gradient):
        d = gradient.neg()
        weights = []
        for s, y, r in zip(reversed(self.steps), reversed(self.changes), reversed(self.rho)):
            a = r * torch.dot(s.flatten(), d.flatten())
            d -= a * y
            weights.append(a)
        if self.steps:
            y = self.changes[-1]
            d *= 1.0 / (self.rho[-1] * y.square().sum()).clamp(min=1e-10)
        for s, y, r, a in zip(self.steps, self.changes, self.rho, reversed(weights)):
            b = r * torch.dot(y.flatten(), d.flatten())
            d += (a - b) * s
        return d

    def step(self, closure):
        self.variable.grad = None
        loss = closure()
        loss.backward()
        gradient = self.variable.grad.detach().clone()
        with torch.no_grad():
            if self.gradient is not None:
                self.remember(gradient)
            update = self.lr * self.direction(gradient)
            self.variable += update
        self.gradient, self.update = gradient, update
        return loss.detach()
