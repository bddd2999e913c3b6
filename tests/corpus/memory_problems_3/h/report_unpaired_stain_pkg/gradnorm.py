"""Gradient-normalised discriminator output."""
import torch


def normalize_gradient(net_D, x, **kwargs):
    """f(x) / (|| grad_x f(x) || + |f(x)|), evaluated per sample."""
    x.requires_grad_(True)
    f = net_D(x, **kwargs)
    grad = torch.autograd.grad(f, [x], torch.ones_like(f), create_graph=True, retain_graph=True)[0]
    grad_norm = torch.norm(torch.flatten(grad, start_dim=1), p=2, dim=1)
    grad_norm = grad_norm.view(-1, *[1 for _ in range(f.dim() - 1)])
    return f / (grad_norm + torch.abs(f))
