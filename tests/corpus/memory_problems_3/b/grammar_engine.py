"""Structured output: a JSON schema is compiled to a table of admissible tokens per state."""
import torch


class Grammar:
    def __init__(self, schema, states, vocab_size, device):
        self.schema = schema
        self.state = 0
        self.states = states
        self.table = torch.ones(states, vocab_size, dtype=torch.bool, device=device)
        self.transitions = torch.zeros(states, dtype=torch.long, device=device)

    def fill_mask(self, mask):
        mask.copy_(self.table[self.state])

    def accept(self, token):
        self.state = (self.state + 1) % self.states

    def finished(self):
        return self.state == self.states - 1


class GrammarCompiler:
    def __init__(self, vocab_size, device):
        self.vocab_size = vocab_size
        self.device = device
        self.compiled = 0

    def compile(self, schema):
        """Every request brings its own schema, so nothing is shared between them."""
        self.compiled += 1
        states = 12 + 6 * len(schema["properties"])
        return Grammar(schema, states, self.vocab_size, self.device)
