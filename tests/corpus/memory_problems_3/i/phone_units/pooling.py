"""Mean vectors of aligned phone segments, collected on the host."""
import numpy as np


class PhoneBook:
    def __init__(self, n_phones):
        self.n_phones = n_phones
        self.vectors = [[] for _ in range(n_phones)]

    def add(self, pooled, phones):
        pooled = pooled.cpu().numpy()
        for row, phone in zip(pooled.reshape(-1, pooled.shape[-1]), phones.reshape(-1)):
            self.vectors[int(phone)].append(row)

    def centroids(self):
        return {phone: np.mean(rows, axis=0)
                for phone, rows in enumerate(self.vectors) if rows}
