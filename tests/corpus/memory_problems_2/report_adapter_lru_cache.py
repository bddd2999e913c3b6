"""Cross-validates a LoRA fine-tuning: each fold builds a fresh model, trains its adapters and is thrown away.

Report: https://github.com/meta-pytorch/torchtune/issues/904 ("get_adapter_params does not free GPU memory":
        "every fold started at a higher GPU usage than the previous one")
Cause:  functools.lru_cache keeps its argument, the model of each fold, and the parameters it returned.
Line:   @functools.lru_cache()
Cure:   remove the decorator (or call get_adapter_params.cache_clear() after each fold).
"""
import functools

import torch
from torch import nn


class LoRALinear(nn.Module):
    def __init__(self, inputs, outputs, rank=8, alpha=16.0):
        super().__init__()
        self.base = nn.Linear(inputs, outputs, bias=False)
        self.lora_a = nn.Linear(inputs, rank, bias=False)
        self.lora_b = nn.Linear(rank, outputs, bias=False)
        self.scaling = alpha / rank

    def adapter_params(self):
        return ["lora_a.weight", "lora_b.weight"]

    def forward(self, x):
        return self.base(x) + self.scaling * self.lora_b(self.lora_a(x))


class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = LoRALinear(width, 4 * width)
        self.down = LoRALinear(4 * width, width)

    def forward(self, x):
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


class Classifier(nn.Module):
    def __init__(self, width=1024, layers=4, classes=3, vocabulary=4000):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.layers = nn.Sequential(*[Layer(width) for _ in range(layers)])
        self.head = nn.Linear(width, classes)

    def forward(self, tokens):
        return self.head(self.layers(self.embed(tokens)).mean(dim=1))


@functools.lru_cache()  # CAUSE
def get_adapter_params(model):
    """The parameters of the adapters by their full names."""
    adapters = {}
    for module_name, module in model.named_modules():
        if hasattr(module, "adapter_params"):
            wanted = module.adapter_params()
            for name, parameter in module.named_parameters():
                if name in wanted:
                    adapters[f"{module_name}.{name}"] = parameter
    return adapters


def set_trainable(model):
    adapters = get_adapter_params(model)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in adapters or name.startswith("head."))


def fold_batches(fold, batches, device, batch_size=16, length=64):
    generator = torch.Generator().manual_seed(fold)
    for _ in range(batches):
        tokens = torch.randint(0, 4000, (batch_size, length), generator=generator)
        labels = torch.randint(0, 3, (batch_size,), generator=generator)
        yield tokens.to(device), labels.to(device)


def run_fold(fold, device, batches=10):
    model = Classifier().to(device)
    set_trainable(model)
    optimizer = torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=1e-4)
    criterion = nn.CrossEntropyLoss()
    model.train()
    for tokens, labels in fold_batches(fold, batches, device):
        optimizer.zero_grad()
        criterion(model(tokens), labels).backward()
        nn.utils.clip_grad_norm_(get_adapter_params(model).values(), 1.0)
        optimizer.step()
    model.eval()
    correct = 0.0
    with torch.inference_mode():
        for tokens, labels in fold_batches(fold + 1000, 3, device):
            correct += (model(tokens).argmax(dim=1) == labels).float().mean().item()
    return correct / 3


def main():
    torch.manual_seed(0)
    device = torch.device("cuda")
    scores = []
    for fold in range(10):
        print(f"fold {fold} starts at {torch.cuda.memory_allocated() / 2**20:.0f} MiB")
        scores.append(run_fold(fold, device))
        torch.cuda.empty_cache()
    print(f"accuracy {sum(scores) / len(scores):.3f} over {len(scores)} folds")
    print("max allocated", torch.cuda.max_memory_allocated() // 2**20, "MiB")


if __name__ == "__main__":
    main()
