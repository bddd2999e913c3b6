"""DeepLIFT/SHAP attributions with a rescale rule for element-wise nonlinearities."""
import torch
from torch import nn

NONLINEAR = (nn.ReLU, nn.GELU, nn.Softplus, nn.ELU)


def _forward_pre_hook(module, inputs):
    module.input = inputs[0].clone().detach()


def _forward_hook(module, inputs, output):
    module.output = output.clone().detach()


def _rescale_hook(module, grad_input, grad_output):
    half = module.input.shape[0] // 2
    delta_in = module.input[:half] - module.input[half:]
    delta_out = module.output[:half] - module.output[half:]
    ratio = torch.where(delta_in.abs() < 1e-6, torch.ones_like(delta_in), delta_out / delta_in)
    return (grad_output[0] * torch.cat([ratio, ratio]),)


def _register_hooks(model):
    handles = []
    for module in model.modules():
        if isinstance(module, NONLINEAR):
            handles.append(module.register_forward_pre_hook(_forward_pre_hook))
            handles.append(module.register_forward_hook(_forward_hook))
            handles.append(module.register_full_backward_hook(_rescale_hook))
    return handles


def _clear_hooks(handles):
    for handle in handles:
        handle.remove()


def dinucleotide_shuffle(X, seed):
    g = torch.Generator().manual_seed(seed)
    return X[:, :, torch.randperm(X.shape[-1], generator=g)]


def deep_lift_shap(model, X, target=0, batch_size=64, device="cuda", seed=0):
    """Return attributions of shape X for one output of the model, on the CPU."""
    handles = _register_hooks(model)
    attributions = []
    try:
        for start in range(0, X.shape[0], batch_size):
            x = X[start:start + batch_size].to(device)
            reference = dinucleotide_shuffle(x.cpu(), seed).to(device)
            joint = torch.cat([x, reference]).requires_grad_()
            y = model(joint)[:, target].sum()
            grad, = torch.autograd.grad(y, joint)
            half = x.shape[0]
            attributions.append(((x - reference) * grad[:half]).cpu())
    finally:
        _clear_hooks(handles)
    return torch.cat(attributions)
