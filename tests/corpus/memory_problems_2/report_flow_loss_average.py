"""Trains a flow-matching agent and follows moving averages of the loss over terminal and other states.

Report: https://github.com/alexhernandezgarcia/gflownet/pull/133 ("Compute EMAs outside of pytorch": the averages
        were updated with tensors that are still attached, "the whole graph is maintained in memory")
Cause:  each moving average is a tensor with history, so every step's loss terms stay reachable through it.
Line:   self.averages[name] = value if previous is None else decay * previous + (1.0 - decay) * value
Cure:   update the averages with value.detach() (or value.item()).
"""
import torch
from torch import nn

STATE_DIM = 48
N_ACTIONS = 12


class FlowModel(nn.Module):
    """In-flow and out-flow (in logarithms) of every state."""

    def __init__(self, state_dim=STATE_DIM, hidden=128, actions=N_ACTIONS):
        super().__init__()
        self.trunk = nn.Sequential(
            nn.Linear(state_dim, hidden), nn.LeakyReLU(), nn.Linear(hidden, hidden), nn.LeakyReLU()
        )
        self.inflow = nn.Linear(hidden, actions)
        self.outflow = nn.Linear(hidden, actions)

    def forward(self, states):
        features = self.trunk(states)
        return self.inflow(features), self.outflow(features)


class GridEnvironment:
    def __init__(self, device, parents_per_batch=131072):
        self.device = device
        self.size = parents_per_batch

    def sample_batch(self):
        states = torch.rand(self.size, STATE_DIM, device=self.device)
        rewards = torch.rand(self.size, device=self.device) + 0.1
        done = torch.rand(self.size, device=self.device)
        return states, rewards, done


class RunningLosses:
    """Exponential moving averages for the progress line."""

    def __init__(self, decay=0.95):
        self.decay = decay
        self.averages = {}

    def update(self, **values):
        decay = self.decay
        for name, value in values.items():
            previous = self.averages.get(name)
            self.averages[name] = value if previous is None else decay * previous + (1.0 - decay) * value  # CAUSE

    def text(self):
        return " ".join(f"{name} {float(value):.3f}" for name, value in self.averages.items())


class GFlowNetAgent:
    def __init__(self, environment, learning_rate=1e-4, epsilon=1e-6):
        self.environment = environment
        self.epsilon = epsilon
        self.model = FlowModel().to(environment.device)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=learning_rate)
        self.running = RunningLosses()

    def flow_mismatch(self, states, rewards, done):
        inflow, outflow = self.model(states)
        total_in = torch.logsumexp(inflow, dim=1)
        total_out = torch.logaddexp(torch.logsumexp(outflow, dim=1), torch.log(rewards + self.epsilon))
        return total_in - total_out * (1.0 - done)

    def losses(self, mismatch, done):
        loss = mismatch.square().mean()
        terminal = (mismatch.square() * done).sum() / (done.sum() + self.epsilon)
        flow = (mismatch.square() * (1.0 - done)).sum() / ((1.0 - done).sum() + self.epsilon)
        return loss, terminal, flow

    def step(self):
        states, rewards, done = self.environment.sample_batch()
        mismatch = self.flow_mismatch(states, rewards, done)
        loss, terminal, flow = self.losses(mismatch, done)
        self.optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.running.update(loss=loss, terminal=terminal, flow=flow)

    def train(self, iterations=200, report_every=25):
        for iteration in range(1, iterations + 1):
            self.step()
            if iteration % report_every == 0:
                print(f"iteration {iteration}: {self.running.text()}")


def main():
    torch.manual_seed(7)
    agent = GFlowNetAgent(GridEnvironment(torch.device("cuda")))
    agent.train()
    print("max allocated", torch.cuda.max_memory_allocated() // 2**20, "MiB")


if __name__ == "__main__":
    main()
