import torch


class SplitOptimizer:
    """AdamW for the towers, SparseAdam for the table, one warm-up schedule for both."""

    def __init__(self, model, lr=1e-3, table_lr=2e-3, warmup=20, clip=5.0):
        self.towers = model.dense_parameters()
        self.dense = torch.optim.AdamW(self.towers, lr=lr, weight_decay=1e-5)
        self.sparse = torch.optim.SparseAdam(list(model.table.parameters()), lr=table_lr)
        self.base = {self.dense: lr, self.sparse: table_lr}
        self.warmup, self.clip, self.t = warmup, clip, 0

    def zero_grad(self):
        for p in self.towers:
            p.grad = None

    def step(self):
        self.t += 1
        for opt, lr in self.base.items():
            for g in opt.param_groups:
                g["lr"] = lr * min(1.0, self.t / self.warmup)
        norm = torch.nn.utils.clip_grad_norm_(self.towers, self.clip)
        self.dense.step()
        self.sparse.step()
        return norm
