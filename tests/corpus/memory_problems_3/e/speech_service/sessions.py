"""Book-keeping of the calls that the gateway forwards."""
import threading
import time

import torch


class SessionManager:
    def __init__(self, model, device):
        self.model, self.device = model, device
        self._states = {}
        self._tokens = {}
        self._last_seen = {}
        self._lock = threading.Lock()

    def open(self, call_id):
        with self._lock:
            self._tokens[call_id] = []
            self._last_seen[call_id] = time.monotonic()

    @torch.inference_mode()
    def feed(self, call_id, chunk):
        state = self._states.get(call_id)
        if state is None:
            state = self.model.start_state(self.device)
        logp, state = self.model(chunk.to(self.device), state)
        with self._lock:
            self._states[call_id] = state
            self._tokens[call_id].extend(logp.argmax(-1)[0].tolist())
            self._last_seen[call_id] = time.monotonic()

    def close(self, call_id):
        with self._lock:
            self._last_seen.pop(call_id)
            return self._tokens.pop(call_id)

    def active(self):
        with self._lock:
            return len(self._last_seen)
