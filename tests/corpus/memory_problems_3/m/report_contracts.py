"""Ask a fixed list of questions about every contract in a folder and store short answers."""
import csv
import io
import random
import sys
import time

import torch

from contractqa.answer import Answerer
from contractqa.lm import CausalLM

QUESTIONS = [
    "Which law governs the agreement?",
    "What is the notice period for termination?",
    "Is there a cap on liability?",
    "Who owns the work product?",
]


def toy_tokenize(text, vocab=48000):
    return [hash_word(w) % vocab for w in text.split()]


def hash_word(word):
    value = 2166136261
    for ch in word.encode():
        value = ((value ^ ch) * 16777619) & 0xFFFFFFFF
    return value


def fake_contract(index, rng):
    clauses = rng.randrange(90, 130)
    words = ["party", "shall", "notice", "clause", "liability", "term", "supplier", "client", "herein"]
    body = " ".join(f"{rng.choice(words)}{rng.randrange(400)}" for _ in range(clauses * 18))
    return f"AGREEMENT {index} {body}"


def build_prompts(contract, limit=2048):
    body = toy_tokenize(contract)
    rows = []
    for question in QUESTIONS:
        tail = toy_tokenize(question)
        rows.append(([0] * limit + body + tail)[-limit:])
    return torch.tensor(rows)


def main():
    device = torch.device(sys.argv[1] if len(sys.argv) > 1 else "cuda")
    torch.manual_seed(21)
    rng = random.Random(21)
    model = CausalLM().to(device=device, dtype=torch.bfloat16).eval()
    weights = sum(p.numel() * p.element_size() for p in model.parameters()) / 2**20
    print(f"weights: {weights:.0f} MiB")
    answerer = Answerer(model, device)
    sink = io.StringIO()
    writer = csv.writer(sink)
    start = time.time()
    for index in range(5):
        prompts = build_prompts(fake_contract(index, rng))
        answers = answerer.answer(prompts)
        for question, row in zip(QUESTIONS, answers.tolist()):
            writer.writerow([index, question, " ".join(map(str, row))])
        peak = torch.cuda.max_memory_allocated(device) / 2**20
        print(f"contract {index}: {prompts.shape[1]} tokens x {len(QUESTIONS)}, {time.time() - start:.1f} s, peak {peak:.0f} MiB", flush=True)
    print(f"{len(sink.getvalue().splitlines())} answers")


if __name__ == "__main__":
    main()
