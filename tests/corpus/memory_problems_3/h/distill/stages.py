import torch
import torch.nn.functional as F


class Stage:
    """One training stage: a model, its optimizer and schedule, and the loss curve."""

    name = "stage"

    def __init__(self, model, lr, steps):
        self.model = model
        self.steps = steps
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
        self.schedule = torch.optim.lr_scheduler.LinearLR(self.optimizer, 1.0, 0.1, steps)
        self.curve = []

    def loss(self, tokens, targets):
        raise NotImplementedError

    def run(self, batches):
        self.model.train()
        for tokens, targets in batches(self.steps):
            self.optimizer.zero_grad()
            loss = self.loss(tokens, targets)
            loss.backward()
            self.optimizer.step()
            self.schedule.step()
            self.curve.append(loss.item())
        return self.model

    def describe(self):
        lr = self.schedule.get_last_lr()[0]
        return f"{self.name}: {len(self.curve)} steps, last loss {self.curve[-1]:.4f}, lr {lr:.2e}"


class Finetune(Stage):
    name = "teacher"

    def loss(self, tokens, targets):
        return F.cross_entropy(self.model(tokens).flatten(0, 1), targets.flatten())


class Distill(Stage):
    name = "student"

    def __init__(self, model, teacher, lr, steps, temperature=2.0, alpha=0.7):
        super().__init__(model, lr, steps)
        self.teacher = teacher
        self.temperature = temperature
        self.alpha = alpha

    def loss(self, tokens, targets):
        with torch.no_grad():
            soft = F.softmax(self.teacher(tokens).flatten(0, 1) / self.temperature, dim=-1)
        logits = self.model(tokens).flatten(0, 1)
        log_probs = F.log_softmax(logits / self.temperature, dim=-1)
        kl = F.kl_div(log_probs, soft, reduction="batchmean") * self.temperature ** 2
        return self.alpha * kl + (1 - self.alpha) * F.cross_entropy(logits, targets.flatten())


class Pipeline:
    def __init__(self, batches):
        self.batches = batches
        self.finished = []

    def run(self, stage):
        print(f"== {stage.name}", flush=True)
        model = stage.run(self.batches)
        self.finished.append(stage)
        return model

    def summary(self):
        return "\n".join(stage.describe() for stage in self.finished)
