import copy
import random


class League:
    """Frozen former selves that the learner plays against; the weakest drops out when it is full."""

    def __init__(self, limit, seed):
        self.limit = limit
        self.members = []
        self.rng = random.Random(seed)

    def enrol(self, agent, generation):
        member = copy.deepcopy(agent)
        member.name = f"gen{generation:03d}"
        member.net.requires_grad_(False)
        member.optim = None
        self.members.append(member)
        if len(self.members) > self.limit:
            self.members.remove(min(self.members, key=lambda m: m.rating))

    def opponent(self):
        return self.rng.choice(self.members)

    def update(self, learner, member, score, k=24.0):
        expected = 1.0 / (1.0 + 10 ** ((member.rating - learner.rating) / 400))
        learner.rating += k * (score - expected)
        member.rating -= k * (score - expected)
