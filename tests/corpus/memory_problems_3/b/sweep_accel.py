"""A thin wrapper that places models and data on the device, in the manner of the distributed launchers."""
import torch


class AcceleratedOptimizer:
    def __init__(self, optimizer, accelerator):
        self.optimizer = optimizer
        self.accelerator = accelerator

    @property
    def param_groups(self):
        return self.optimizer.param_groups

    def zero_grad(self):
        if self.accelerator.sync_gradients:
            self.optimizer.zero_grad(set_to_none=True)

    def step(self):
        if self.accelerator.sync_gradients:
            self.optimizer.step()


class DeviceLoader:
    def __init__(self, batches, device):
        self.batches = batches
        self.device = device

    def __len__(self):
        return len(self.batches)

    def __iter__(self):
        for batch in self.batches:
            yield {key: value.to(self.device, non_blocking=True) for key, value in batch.items()}


class Accelerator:
    def __init__(self, gradient_accumulation_steps=1):
        self.device = torch.device("cuda")
        self.gradient_accumulation_steps = gradient_accumulation_steps
        self.sync_gradients = True
        self._optimizers = []
        self._micro_step = 0

    def prepare(self, *objects):
        prepared = []
        for item in objects:
            if isinstance(item, torch.nn.Module):
                prepared.append(item.to(self.device))
            elif isinstance(item, torch.optim.Optimizer):
                wrapped = AcceleratedOptimizer(item, self)
                self._optimizers.append(wrapped)
                prepared.append(wrapped)
            else:
                prepared.append(DeviceLoader(item, self.device))
        return tuple(prepared)

    def backward(self, loss):
        self._micro_step += 1
        self.sync_gradients = self._micro_step % self.gradient_accumulation_steps == 0
        (loss / self.gradient_accumulation_steps).backward()

    def free_memory(self):
        self._optimizers.clear()
        self._micro_step = 0
        self.sync_gradients = True
