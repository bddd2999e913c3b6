import json

import torch


def storage_bytes(tensors):
    """Bytes of the distinct device storages behind the tensors."""
    sizes = {}
    for t in tensors:
        if t is not None and t.is_cuda:
            s = t.untyped_storage()
            sizes[s.data_ptr()] = s.nbytes()
    return sum(sizes.values())


def gradients(*modules):
    return [p.grad for m in modules for p in m.parameters()]


def optimizer_tensors(*optimizers):
    return [v for o in optimizers for st in o.state.values() for v in st.values() if torch.is_tensor(v)]


class PeakWatch:
    """Remembers after which phase the allocator's maximum was last seen to rise."""

    def __init__(self):
        self.best, self.position = 0, None

    def check(self, step, phase):
        now = torch.cuda.max_memory_allocated()
        if now > self.best:
            self.best, self.position = now, f"step {step}, {phase}"


def report(watch, sizes):
    print(json.dumps({"peak_position": watch.position, "bytes": sizes}))
