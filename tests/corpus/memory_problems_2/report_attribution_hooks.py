"""Attributes the predictions of an ensemble of sequence models with DeepLIFT-like hooks, one model after the other.

Report: https://github.com/jmschrei/tangermeme/pull/84 ("Fixed GPU memory leak in deep_lift_shap.py": _clear_hooks()
        removes the hooks but module.input and module.output stay; N models keep N sets of activations)
Cause:  the forward hooks store input and output as attributes of each module, and nobody removes them.
Line:   module.output = output.detach().clone()
Cure:   in clear_hooks() also delete the attributes: del module.input, module.output.
"""
import torch
from torch import nn

ALPHABET = 4


class DilatedBlock(nn.Module):
    def __init__(self, filters, dilation):
        super().__init__()
        self.conv = nn.Conv1d(filters, filters, 3, padding=dilation, dilation=dilation)
        self.relu = nn.ReLU()

    def forward(self, x):
        return x + self.relu(self.conv(x))


class ProfileModel(nn.Module):
    """Predicts a count from one-hot encoded DNA."""

    def __init__(self, filters=64, layers=6):
        super().__init__()
        self.first = nn.Conv1d(ALPHABET, filters, 21, padding=10)
        self.relu = nn.ReLU()
        self.blocks = nn.Sequential(*[DilatedBlock(filters, 2**i) for i in range(1, layers + 1)])
        self.count = nn.Linear(filters, 1)

    def forward(self, x):
        return self.count(self.blocks(self.relu(self.first(x))).mean(dim=-1))


def rescale(module, grad_input, grad_output):
    """Multiplier of the rescale rule between the two halves of the batch (sequence, reference)."""
    delta_in = torch.stack(module.input.chunk(2)).diff(dim=0)[0]
    delta_out = torch.stack(module.output.chunk(2)).diff(dim=0)[0]
    multiplier = delta_out / (delta_in + 1e-7)
    return (grad_output[0] * torch.cat([multiplier, multiplier]),)


class DeepLift:
    def __init__(self, model):
        self.model = model
        self.handles = []

    def forward_hook(self, module, inputs, output):
        module.input = inputs[0].detach().clone()
        module.output = output.detach().clone()  # CAUSE

    def register_hooks(self):
        for module in self.model.modules():
            if isinstance(module, nn.ReLU):
                self.handles.append(module.register_forward_hook(self.forward_hook))
                self.handles.append(module.register_full_backward_hook(rescale))

    def clear_hooks(self):
        for handle in self.handles:
            handle.remove()
        self.handles = []

    def attribute(self, sequences, references):
        self.register_hooks()
        try:
            x = torch.cat([sequences, references]).requires_grad_(True)
            prediction = self.model(x)
            gradient, = torch.autograd.grad(prediction.sum(), x)
        finally:
            self.clear_hooks()
        multiplier = gradient[: len(sequences)]
        return (multiplier * (sequences - references)).sum(dim=1)


def one_hot(count, length, generator, device):
    letters = torch.randint(0, ALPHABET, (count, length), generator=generator).to(device)
    return torch.eye(ALPHABET, device=device)[letters].transpose(1, 2).contiguous()


def main(models=8, batches=8, batch_size=32, length=1024):
    torch.manual_seed(0)
    device = torch.device("cuda")
    generator = torch.Generator().manual_seed(1)
    ensemble = {f"fold{index}": ProfileModel().to(device).eval() for index in range(models)}
    print(f"{len(ensemble)} models: {torch.cuda.memory_allocated() / 2**20:.0f} MiB")
    averages = {}
    for name, model in ensemble.items():
        lift = DeepLift(model)
        rows = []
        for _ in range(batches):
            sequences = one_hot(batch_size, length, generator, device)
            references = one_hot(batch_size, length, generator, device)
            rows.append(lift.attribute(sequences, references).cpu())
        averages[name] = torch.cat(rows).mean(dim=0)
        print(f"{name} attributed, {torch.cuda.memory_allocated() / 2**20:.0f} MiB allocated")
    consensus = torch.stack(list(averages.values())).mean(dim=0)
    print("positions:", consensus.numel())
    print("max allocated", torch.cuda.max_memory_allocated() // 2**20, "MiB")


if __name__ == "__main__":
    main()
