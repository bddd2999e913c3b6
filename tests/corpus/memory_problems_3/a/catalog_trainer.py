"""A small training loop in the manner of the common fine-tuning trainers."""
from dataclasses import dataclass
from typing import Callable, Dict, Iterable, Optional

import torch
from torch import nn


@dataclass
class TrainingArguments:
    learning_rate: float = 5e-5
    train_batch_size: int = 64
    eval_batch_size: int = 256
    max_steps: int = 60
    logging_steps: int = 20
    max_grad_norm: float = 1.0


@dataclass
class PredictionOutput:
    predictions: torch.Tensor
    label_ids: torch.Tensor
    loss: float


def batches(dataset, batch_size, shuffle=False) -> Iterable[Dict[str, torch.Tensor]]:
    order = torch.randperm(len(dataset)) if shuffle else torch.arange(len(dataset))
    for start in range(0, len(dataset), batch_size):
        yield dataset.collate(order[start : start + batch_size])


class Trainer:
    def __init__(self, model: nn.Module, args: TrainingArguments, train_dataset, eval_dataset,
                 compute_metrics: Optional[Callable] = None):
        self.args = args
        self.device = torch.device("cuda")
        self.model = model.to(self.device)
        self.train_dataset = train_dataset
        self.eval_dataset = eval_dataset
        self.compute_metrics = compute_metrics
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=args.learning_rate)

    def prepare_inputs(self, inputs):
        return {name: value.to(self.device, non_blocking=True) for name, value in inputs.items()}

    def training_step(self, inputs):
        self.model.train()
        loss, _ = self.model(**self.prepare_inputs(inputs))
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), self.args.max_grad_norm)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.item()

    def train(self):
        step, running = 0, 0.0
        while step < self.args.max_steps:
            for inputs in batches(self.train_dataset, self.args.train_batch_size, shuffle=True):
                running += self.training_step(inputs)
                step += 1
                if step % self.args.logging_steps == 0:
                    print(f"step {step}: loss {running / self.args.logging_steps:.4f}")
                    running = 0.0
                if step == self.args.max_steps:
                    break

    def prediction_step(self, inputs):
        with torch.no_grad():
            loss, logits = self.model(**self.prepare_inputs(inputs))
        return loss.mean().item(), logits, inputs["labels"]

    def prediction_loop(self, dataset) -> PredictionOutput:
        self.model.eval()
        losses, preds, label_ids = [], None, None
        for inputs in batches(dataset, self.args.eval_batch_size):
            loss, logits, labels = self.prediction_step(inputs)
            losses.append(loss)
            preds = logits if preds is None else torch.cat((preds, logits), dim=0)
            label_ids = labels if label_ids is None else torch.cat((label_ids, labels), dim=0)
        return PredictionOutput(preds, label_ids, sum(losses) / len(losses))

    def evaluate(self):
        output = self.prediction_loop(self.eval_dataset)
        metrics = {"eval_loss": output.loss}
        if self.compute_metrics is not None:
            metrics.update(self.compute_metrics(output))
        return metrics
