"""Distils a language model into a smaller one; the divergence is computed over chunks of the sequence."""
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

VOCABULARY = 24000


class Layer(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        q, k, v = (
            part.view(*x.shape[:2], self.heads, -1).transpose(1, 2) for part in self.qkv(self.norm_1(x)).chunk(3, dim=-1)
        )
        attended = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm_2(x))


class LanguageModel(nn.Module):
    def __init__(self, width, layers, heads, recompute=False):
        super().__init__()
        self.recompute = recompute
        self.embedding = nn.Embedding(VOCABULARY, width)
        self.layers = nn.ModuleList(Layer(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.lm_head = nn.Linear(width, VOCABULARY, bias=False)

    def hidden_states(self, tokens):
        x = self.embedding(tokens)
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if self.recompute and self.training else layer(x)
        return self.norm(x)


class ChunkedDivergence(nn.Module):
    """Generalised Jensen-Shannon divergence that never holds the logits of the whole sequence."""

    def __init__(self, beta=0.5, temperature=1.0, chunk=64):
        super().__init__()
        self.beta, self.temperature, self.chunk = beta, temperature, chunk

    def chunk_loss(self, student_hidden, student_head, teacher_hidden, teacher_head):
        student = (student_hidden @ student_head.t() / self.temperature).log_softmax(dim=-1)
        teacher = (teacher_hidden @ teacher_head.t() / self.temperature).log_softmax(dim=-1)
        mixture = torch.lerp(student.exp(), teacher.exp(), self.beta).clamp_min(1e-9).log()
        forward = (teacher.exp() * (teacher - mixture)).sum()
        backward = (student.exp() * (student - mixture)).sum()
        return self.beta * forward + (1 - self.beta) * backward

    def forward(self, student_hidden, student_head, teacher_hidden, teacher_head):
        total = student_hidden.new_zeros(())
        for start in range(0, student_hidden.shape[1], self.chunk):
            part = slice(start, start + self.chunk)
            total = total + checkpoint(
                self.chunk_loss, student_hidden[:, part], student_head, teacher_hidden[:, part], teacher_head, use_reentrant=False
            )
        return total / student_hidden.shape[:2].numel()


class Distiller:
    def __init__(self, teacher, student, learning_rate=1e-4):
        self.teacher = teacher.cuda().eval()
        self.student = student.cuda().train()
        self.divergence = ChunkedDivergence()
        self.optimizer = torch.optim.AdamW(self.student.parameters(), lr=learning_rate)

    def compute_loss(self, tokens):
        student_hidden = self.student.hidden_states(tokens)
        teacher_hidden = self.teacher.hidden_states(tokens)
        return self.divergence(student_hidden, self.student.lm_head.weight, teacher_hidden, self.teacher.lm_head.weight)

    def step(self, tokens):
        loss = self.compute_loss(tokens)
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.student.parameters(), 1.0)
        self.optimizer.step()
        return loss.item()


def corpus(batches, batch_size, length, seed=0):
    generator = torch.Generator().manual_seed(seed)
    for _ in range(batches):
        yield torch.randint(0, VOCABULARY, (batch_size, length), generator=generator)


if __name__ == "__main__":
    torch.manual_seed(0)
    distiller = Distiller(
        teacher=LanguageModel(width=1024, layers=16, heads=16),
        student=LanguageModel(width=384, layers=6, heads=6, recompute=True),
    )
    print(f"models: {torch.cuda.memory_allocated() / 2**20:.0f} MiB")
    for number, tokens in enumerate(corpus(batches=30, batch_size=8, length=256), start=1):
        loss = distiller.step(tokens.cuda())
        if number % 5 == 0:
            print(f"step {number}: loss {loss:.4f}, {torch.cuda.memory_allocated() / 2**20:.0f} MiB allocated, "
                  f"peak {torch.cuda.max_memory_allocated() / 2**20:.0f} MiB")
