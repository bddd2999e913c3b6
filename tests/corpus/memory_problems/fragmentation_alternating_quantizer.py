"""Quantizes a model layer by layer; the fp32 layers are kept until the calibration is done.

True cause: the large short-lived weights in fp32 (7.6 MiB) and the small long-lived ones in int8 (1.9 MiB) are allocated
in turn and share segments of 20 MiB; when the fp32 weights are freed, the int8 weights pin nearly every segment, and the
activations of the inference (over 20 MiB each) cannot use the holes.
The line: `self.quantized[name] = (quantized, scale)`, made by `quantized = (weight / scale).round_().to(torch.int8)`.
Cure: quantize into one tensor that is made first (or on the host and move the result once).
"""

import torch

LAYERS = 160
ROWS, COLUMNS = 1408, 1408


def read_layers(path=None):
    """Reads one layer after the other from the file of the weights."""
    for i in range(LAYERS):
        yield f"layers.{i}.weight", torch.zeros(ROWS, COLUMNS)


class Quantizer:
    def __init__(self, device):
        self.device = device
        self.full = {}
        self.quantized = {}

    def load(self):
        for name, weight in read_layers():
            weight = weight.to(self.device)
            scale = weight.abs().amax(dim=1, keepdim=True).clamp_(min=1e-8) / 127
            quantized = (weight / scale).round_().to(torch.int8)  # CAUSE
            self.full[name] = weight
            self.quantized[name] = (quantized, scale)  # CAUSE

    def calibrate(self, samples):
        """Corrects the scales with the outputs of the exact layers."""
        x = samples
        for name, weight in self.full.items():
            quantized, scale = self.quantized[name]
            exact = x @ weight.T
            rounded = x @ (quantized.to(x.dtype) * scale).T
            scale *= (exact.norm() / rounded.norm().clamp(min=1e-6)).clamp(0.9, 1.1)
            x = torch.tanh(exact)
        self.full.clear()

    def forward(self, x):
        for quantized, scale in self.quantized.values():
            x = torch.tanh(x @ (quantized.to(x.dtype) * scale).T)
        return x


@torch.no_grad()
def main():
    torch.manual_seed(10)
    device = torch.device("cuda")
    quantizer = Quantizer(device)
    quantizer.load()
    quantizer.calibrate(torch.randn(256, COLUMNS, device=device))
    for batch in range(8):
        x = torch.randn(16384, COLUMNS, device=device)
        y = quantizer.forward(x)
        print(f"batch {batch}: {y.mean().item():.4f}", flush=True)


if __name__ == "__main__":
    main()
