import torch


class DiagonalNewton:
    """Damped Newton steps with a Hutchinson estimate of the Hessian diagonal."""

    def __init__(self, params, lr, damping, decay=0.9):
        self.params = [p for p in params if p.requires_grad]
        self.lr, self.damping, self.decay = lr, damping, decay
        self.diagonal = [torch.zeros_like(p) for p in self.params]

    def zero_grad(self):
        for p in self.params:
            p.grad = None

    def _probe(self):
        return [torch.randint_like(p, 2).mul_(2).sub_(1) for p in self.params]

    def _estimate(self, grads):
        probe = self._probe()
        curvature = torch.autograd.grad(grads, self.params, grad_outputs=probe)
        for slot, v, hv in zip(self.diagonal, probe, curvature):
            slot.mul_(self.decay).add_((v * hv).abs_(), alpha=1 - self.decay)

    def step(self, loss):
        loss.backward(create_graph=True)
        grads = [p.grad for p in self.params]
        self._estimate(grads)
        with torch.no_grad():
            for p, g, h in zip(self.params, grads, self.diagonal):
                p.sub_(self.lr * g / (h + self.damping))
