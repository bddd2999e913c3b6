"""Compares the registered sound classifiers on latency and accuracy over several label sets."""
import csv
import io
import time

import torch

from audio_zoo import REGISTRY, create_model

LABEL_SETS = {"esc50": 50, "urbansound": 10, "fsd50k": 200, "audioset": 527, "speechcommands": 35, "gtzan": 10, "vocal": 6}


def clips(num_classes, batches, batch_size=8, frames=256):
    generator = torch.Generator().manual_seed(num_classes)
    for _ in range(batches):
        mel = torch.randn(batch_size, 128, frames, generator=generator)
        yield mel.cuda(), torch.randint(num_classes, (batch_size,), generator=generator).cuda()


@torch.inference_mode()
def evaluate(model, num_classes, batches):
    correct = total = 0
    for mel, label in clips(num_classes, batches):
        prediction = model(mel).argmax(dim=-1)
        correct += (prediction == label).sum().item()
        total += len(label)
    return correct / total


@torch.inference_mode()
def latency(model, repeats):
    mel, _ = next(clips(10, 1))
    model(mel)
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(repeats):
        model(mel)
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / repeats * 1e3


def benchmark(name, dataset, num_classes):
    torch.cuda.empty_cache()
    model = create_model(name, num_classes)
    row = {
        "model": name,
        "dataset": dataset,
        "parameters": sum(p.numel() for p in model.parameters()),
        "accuracy": round(evaluate(model, num_classes, batches=4), 4),
        "ms": round(latency(model, repeats=3), 2),
    }
    del model
    torch.cuda.empty_cache()
    return row


def main():
    rows = []
    for dataset, num_classes in LABEL_SETS.items():
        for name in REGISTRY:
            rows.append(benchmark(name, dataset, num_classes))
        print(f"{dataset}: allocated {torch.cuda.memory_allocated() / 2**20:.0f} MiB")
    out = io.StringIO()
    writer = csv.DictWriter(out, fieldnames=rows[0])
    writer.writeheader()
    writer.writerows(rows)
    print(out.getvalue())


if __name__ == "__main__":
    main()
