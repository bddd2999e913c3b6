"""Kind of report: "evaluation runs out of memory although training does not" (Hugging Face, Trainer with compute_metrics).

True cause: the evaluation loop gathers the logits of the whole vocabulary of all batches on the GPU until the metrics
are computed at the end; torch.cat makes it worse, since the old and the new tensor are there at the same time.
The line: `all_logits = logits if all_logits is None else torch.cat((all_logits, logits), dim=0)`.
Cure: keep only the argmax (preprocess_logits_for_metrics), or move to the host every few steps
(eval_accumulation_steps).
"""

from dataclasses import dataclass

import torch
from torch import nn


@dataclass
class TrainingArguments:
    per_device_train_batch_size: int = 8
    per_device_eval_batch_size: int = 8
    num_train_epochs: int = 2
    learning_rate: float = 5e-5


class TinyLM(nn.Module):
    def __init__(self, vocab=16000, dim=256):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.rnn = nn.GRU(dim, dim, batch_first=True)
        self.lm_head = nn.Linear(dim, vocab, bias=False)

    def forward(self, input_ids, labels=None):
        hidden, _ = self.rnn(self.embed(input_ids))
        logits = self.lm_head(hidden)
        loss = None
        if labels is not None:
            loss = nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        return loss, logits


class Trainer:
    def __init__(self, model, args, train_dataset, eval_dataset, compute_metrics):
        self.model = model.to("cuda")
        self.args = args
        self.train_dataset, self.eval_dataset = train_dataset, eval_dataset
        self.compute_metrics = compute_metrics
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=args.learning_rate)

    def train(self):
        for epoch in range(self.args.num_train_epochs):
            self.model.train()
            for ids in self.train_dataset.split(self.args.per_device_train_batch_size):
                ids = ids.to("cuda")
                loss, _ = self.model(ids, labels=ids)
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
            print(f"epoch {epoch}: {self.evaluate()}", flush=True)

    @torch.no_grad()
    def evaluate(self):
        self.model.eval()
        all_logits, all_labels = None, None
        for ids in self.eval_dataset.split(self.args.per_device_eval_batch_size):
            ids = ids.to("cuda")
            _, logits = self.model(ids, labels=ids)
            all_logits = logits if all_logits is None else torch.cat((all_logits, logits), dim=0)  # CAUSE
            all_labels = ids if all_labels is None else torch.cat((all_labels, ids), dim=0)
        return self.compute_metrics(all_logits, all_labels)


def compute_metrics(logits, labels):
    predictions = logits.argmax(-1)
    return {"accuracy": (predictions[:, :-1] == labels[:, 1:]).float().mean().item()}


if __name__ == "__main__":
    torch.manual_seed(22)
    data = torch.randint(0, 16000, (500, 96))
    Trainer(TinyLM(), TrainingArguments(), data[:200], data[200:], compute_metrics).train()
