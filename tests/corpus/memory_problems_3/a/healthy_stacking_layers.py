"""Progressive stacking: a text classifier starts with two layers, which are doubled twice during the training."""
import copy

import torch
from torch import nn


class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.gate = nn.Linear(width, width)
        self.mix = nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.ReLU(), nn.Linear(4 * width, width))

    def forward(self, x):
        x = x + torch.sigmoid(self.gate(x)) * self.mix(x.roll(1, dims=1))
        return x + self.mlp(x)


class Classifier(nn.Module):
    def __init__(self, vocabulary=8000, width=640, layers=2, classes=20):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(Layer(width) for _ in range(layers))
        self.head = nn.Linear(width, classes)

    def grow(self):
        new = [copy.deepcopy(layer) for layer in self.layers]
        self.layers.extend(new)
        return [parameter for layer in new for parameter in layer.parameters()]

    def forward(self, tokens):
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x.mean(dim=1))


class StackingTrainer:
    grow_at = (60, 140)

    def __init__(self, steps=260, batch_size=48, length=96):
        self.steps = steps
        self.shape = (batch_size, length)
        self.model = Classifier().cuda()
        self.body = torch.optim.AdamW(self.model.layers.parameters(), lr=3e-4)
        self.edges = torch.optim.SGD(
            [*self.model.embed.parameters(), *self.model.head.parameters()], lr=0.05, momentum=0.9
        )
        self.history = []

    def step(self):
        tokens = torch.randint(0, 8000, self.shape).cuda()
        labels = torch.randint(0, 20, (self.shape[0],)).cuda()
        loss = nn.functional.cross_entropy(self.model(tokens), labels)
        for optimizer in (self.body, self.edges):
            optimizer.zero_grad(set_to_none=True)
        loss.backward()
        for optimizer in (self.body, self.edges):
            optimizer.step()
        self.history.append(loss.item())

    def fit(self):
        for step in range(self.steps):
            if step in self.grow_at:
                self.body.add_param_group({"params": self.model.grow()})
                print(f"step {step}: now {len(self.model.layers)} layers")
            self.step()
            if step % 40 == 39:
                print(f"step {step + 1}: loss {self.history[-1]:.4f}, {torch.cuda.memory_allocated() >> 20} MiB")


if __name__ == "__main__":
    StackingTrainer().fit()
