"""DeepLIFT-style contribution scores with the rescale rule."""
import torch
import torch.nn as nn

NONLINEAR = (nn.ReLU, nn.GELU, nn.ELU, nn.Softplus)


def _remember(module, inputs, output):
    module.input = inputs[0].detach()
    module.output = output.detach()


def _rescale(module, grad_input, grad_output):
    half = module.input.shape[0] // 2
    delta_in = module.input[:half] - module.input[half:]
    delta_out = module.output[:half] - module.output[half:]
    slope = delta_out / torch.where(delta_in.abs() < 1e-6, torch.ones_like(delta_in), delta_in)
    slope = torch.cat([slope, slope])
    return (grad_output[0] * slope,)


class ContributionScorer:
    def __init__(self, model, references=2):
        self.model = model
        self.references = references
        self.handles = []

    def __enter__(self):
        for module in self.model.modules():
            if isinstance(module, NONLINEAR):
                self.handles.append(module.register_forward_hook(_remember))
                self.handles.append(module.register_full_backward_hook(_rescale))
        return self

    def __exit__(self, *exc):
        for handle in self.handles:
            handle.remove()
        self.handles.clear()

    def shuffled(self, onehot):
        copies = []
        for _ in range(self.references):
            order = torch.randperm(onehot.shape[-1], device=onehot.device)
            copies.append(onehot[..., order])
        return torch.cat(copies)

    def __call__(self, onehot):
        repeated = onehot.repeat(self.references, 1, 1)
        background = self.shuffled(onehot)
        stacked = torch.cat([repeated, background]).requires_grad_()
        _, counts = self.model(stacked)
        gradient, = torch.autograd.grad(counts.sum(), stacked)
        half = repeated.shape[0]
        contribution = gradient[:half] * (repeated - background)
        return contribution.reshape(self.references, *onehot.shape).mean(0)
