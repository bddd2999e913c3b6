"""Label the utterances of a day of support calls by speaker."""
import random
import sys

import torch

from voxsplit import FrameEncoder, SpeakerBank

CALLS = 24
UTTERANCES = 8
MELS = 80


def utterances(rng, call):
    """Turns of one call as (speaker, number of frames)."""
    agent, customer = f"agent-{call % 5}", f"customer-{call}"
    for turn in range(UTTERANCES):
        yield (agent if turn % 2 == 0 else customer), rng.randint(1800, 4200)


def load_features(frames, generator, device):
    mel = torch.randn(1, frames, MELS, generator=generator)
    return mel.to(device, non_blocking=True)


def label_call(call, encoder, bank, rng, generator, device):
    frames_total = 0
    for speaker, frames in utterances(rng, call):
        mel = load_features(frames, generator, device)
        vector = encoder.embed(mel)
        if len(bank):
            bank.affinity(vector)
        bank.add(speaker, vector)
        frames_total += frames
    return frames_total


def main():
    device = torch.device(sys.argv[1] if len(sys.argv) > 1 else "cuda")
    torch.manual_seed(11)
    rng = random.Random(11)
    generator = torch.Generator().manual_seed(11)

    encoder = FrameEncoder(mels=MELS).to(device).eval()
    bank = SpeakerBank()
    for call in range(CALLS):
        frames = label_call(call, encoder, bank, rng, generator, device)
        if call % 4 == 3:
            used = torch.cuda.memory_allocated(device) / 2**20
            print(f"call {call + 1:3d}: {frames / 100:.0f} s of speech, {len(bank)} utterances, {used:.0f} MiB")

    names, centres = bank.centroids()
    print(f"{len(names)} speakers, centroid table {tuple(centres.shape)}")


if __name__ == "__main__":
    main()
