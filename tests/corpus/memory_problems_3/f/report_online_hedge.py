"""Online deep learning with hedge backpropagation on a sensor stream.

Each hidden layer has its own classifier; the mixture weights follow the losses.
"""
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

N_FEATURES = 40
N_HIDDEN = 256
N_LAYERS = 8
N_CLASSES = 6
CHUNK = 64
ROUNDS = 180


class StreamSource:
    """Drifting gaussian mixture, delivered in chunks of labelled readings."""

    def __init__(self, seed=5):
        self.rng = np.random.default_rng(seed)
        self.means = self.rng.normal(size=(N_CLASSES, N_FEATURES))

    def __iter__(self):
        return self

    def __next__(self):
        self.means += 0.01 * self.rng.normal(size=self.means.shape)
        y = self.rng.integers(0, N_CLASSES, CHUNK)
        x = self.means[y] + self.rng.normal(size=(CHUNK, N_FEATURES))
        return x.astype(np.float32), y


class ONN(nn.Module):
    def __init__(self, b=0.99, n=0.01, s=0.2, device="cuda"):
        super().__init__()
        self.device = device
        self.b, self.n, self.s = b, n, s
        dims = [N_FEATURES] + [N_HIDDEN] * N_LAYERS
        self.hidden_layers = nn.ModuleList(nn.Linear(i, o) for i, o in zip(dims[:-1], dims[1:]))
        self.output_layers = nn.ModuleList(nn.Linear(N_HIDDEN, N_CLASSES) for _ in range(N_LAYERS))
        self.to(device)
        self.alpha = torch.full((N_LAYERS,), 1.0 / N_LAYERS, device=device)

    def forward(self, x):
        outputs = []
        for hidden, output in zip(self.hidden_layers, self.output_layers):
            x = F.relu(hidden(x))
            outputs.append(output(x))
        return torch.stack(outputs)

    def zero_grad_all(self):
        for p in self.parameters():
            if p.grad is not None:
                p.grad.zero_()

    def update_weights(self, x, y):
        predictions = self.forward(x)
        losses = [F.cross_entropy(p, y) for p in predictions]
        hidden_steps = [torch.zeros_like(h.weight) for h in self.hidden_layers]
        for i in range(N_LAYERS):
            self.zero_grad_all()
            losses[i].backward(retain_graph=True)
            out = self.output_layers[i]
            out.weight.data -= self.n * self.alpha[i] * out.weight.grad
            out.bias.data -= self.n * self.alpha[i] * out.bias.grad
            for j in range(i + 1):
                hidden_steps[j] += (self.alpha[i] * self.hidden_layers[j].weight.grad).detach()
        for hidden, step in zip(self.hidden_layers, hidden_steps):
            hidden.weight.data -= self.n * step

        decay = torch.stack([self.b ** loss for loss in losses])
        alpha = torch.clamp(self.alpha * decay, min=self.s / N_LAYERS)
        self.alpha = alpha / alpha.sum()

    def partial_fit(self, x, y):
        x = torch.from_numpy(x).to(self.device)
        y = torch.from_numpy(y).to(self.device)
        self.update_weights(x, y)

    @torch.no_grad()
    def predict(self, x):
        x = torch.from_numpy(x).to(self.device)
        mix = (self.alpha.view(-1, 1, 1) * self.forward(x)).sum(0)
        return mix.argmax(-1).cpu().numpy()


def main():
    torch.manual_seed(1)
    model = ONN()
    stream = StreamSource()
    hits = seen = 0
    for t, (x, y) in enumerate(stream):
        if t == ROUNDS:
            break
        hits += int((model.predict(x) == y).sum())
        seen += len(y)
        model.partial_fit(x, y)
        if t % 60 == 59:
            print(f"round {t + 1}: prequential accuracy {hits / seen:.3f}")


if __name__ == "__main__":
    main()
