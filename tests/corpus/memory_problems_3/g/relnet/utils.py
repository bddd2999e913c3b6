import numpy as np
import torch


def encode_onehot(labels, n):
    out = np.zeros((len(labels), n), dtype=np.float32)
    out[np.arange(len(labels)), labels] = 1
    return out


def relation_matrices(n_nodes, device):
    """Receiver and sender matrices of the fully connected graph without self loops."""
    off_diag = np.ones([n_nodes, n_nodes], dtype=bool) ^ np.eye(n_nodes, dtype=bool)
    receivers, senders = np.where(off_diag)
    rel_rec = torch.from_numpy(encode_onehot(receivers, n_nodes)).to(device)
    rel_send = torch.from_numpy(encode_onehot(senders, n_nodes)).to(device)
    return rel_rec, rel_send


def gumbel_softmax(logits, tau):
    gumbels = -torch.empty_like(logits).exponential_().log()
    return torch.softmax((logits + gumbels) / tau, dim=-1)


def kl_categorical_uniform(probs, num_nodes):
    return (probs * torch.log(probs + 1e-16)).sum() / (num_nodes * probs.size(0))
