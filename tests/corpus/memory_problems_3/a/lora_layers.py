"""Low-rank adapters on the linear layers of a frozen model, several of which can be loaded side by side."""
import math

import torch
from torch import nn


class LoraLinear(nn.Module):
    def __init__(self, base: nn.Linear):
        super().__init__()
        self.base = base
        self.lora_A = nn.ModuleDict()
        self.lora_B = nn.ModuleDict()
        self.scaling = {}
        self.active = None

    def add(self, name, rank, alpha):
        device = self.base.weight.device
        self.lora_A[name] = nn.Linear(self.base.in_features, rank, bias=False, device=device)
        self.lora_B[name] = nn.Linear(rank, self.base.out_features, bias=False, device=device)
        nn.init.kaiming_uniform_(self.lora_A[name].weight, a=math.sqrt(5))
        nn.init.zeros_(self.lora_B[name].weight)
        self.scaling[name] = alpha / rank

    def remove(self, name):
        del self.lora_A[name], self.lora_B[name], self.scaling[name]
        if self.active == name:
            self.active = None

    def forward(self, x):
        result = self.base(x)
        if self.active is not None:
            result = result + self.lora_B[self.active](self.lora_A[self.active](x)) * self.scaling[self.active]
        return result


class LoraModel(nn.Module):
    def __init__(self, model, targets):
        super().__init__()
        self.model = model.requires_grad_(False)
        self.adapters = []
        for parent in list(model.modules()):
            for name, child in list(parent.named_children()):
                if name in targets and isinstance(child, nn.Linear):
                    setattr(parent, name, LoraLinear(child))

    def layers(self):
        return {name: layer for name, layer in self.model.named_modules() if isinstance(layer, LoraLinear)}

    def load_adapter(self, name, weights, rank, alpha=16):
        for path, layer in self.layers().items():
            layer.add(name, rank, alpha)
            layer.lora_A[name].weight.data.copy_(weights[path + ".lora_A"])
            layer.lora_B[name].weight.data.copy_(weights[path + ".lora_B"])
        self.adapters.append(name)

    def set_adapter(self, name):
        for layer in self.layers().values():
            layer.active = name

    def delete_adapter(self, name):
        for layer in self.layers().values():
            layer.remove(name)
        self.adapters.remove(name)

    @torch.inference_mode()
    def generate(self, tokens, new_tokens):
        for _ in range(new_tokens):
            logits = self.model(tokens[:, -self.model.context :])
            tokens = torch.cat([tokens, logits[:, -1].argmax(dim=-1, keepdim=True)], dim=1)
        return tokens
