"""Find speech in synthetic audio with the pretrained Silero network, on two devices."""

from __future__ import annotations

import argparse
import math
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn

RATE = 16_000  # samples per second
FRAME = 512  # new samples per frame, 32 ms
CONTEXT = 64  # samples of the frame before that each frame sees again
TOLERANCE = 1e-4

# Centre frequencies of the first three vowel formants in Hz, rounded from phonetics textbooks.
VOWELS = {"a": (730, 1090, 2440), "i": (270, 2290, 3010), "u": (300, 870, 2240)}


class VoiceActivity(nn.Module):
    """Spectrogram, four convolutions, an LSTM over frames; named as in the weights file."""

    def __init__(self) -> None:
        super().__init__()
        self.stft_conv = nn.Conv1d(1, 258, 256, stride=128, bias=False)
        self.conv1 = nn.Conv1d(129, 128, 3, padding=1)
        self.conv2 = nn.Conv1d(128, 64, 3, stride=2, padding=1)
        self.conv3 = nn.Conv1d(64, 64, 3, stride=2, padding=1)
        self.conv4 = nn.Conv1d(64, 128, 3, padding=1)
        self.lstm_cell = nn.LSTMCell(128, 128)
        self.final_conv = nn.Conv1d(128, 1, 1)

    def forward(self, frames: Tensor) -> Tensor:
        """Probability of speech in each of the frames [N, CONTEXT + FRAME], in order of time."""
        padded = F.pad(frames.unsqueeze(1), (0, 64), mode="reflect")  # -> [N, 1, 640]
        real, imaginary = self.stft_conv(padded).chunk(2, dim=1)  # each [N, 129, 4]
        x = torch.sqrt(real.square() + imaginary.square())
        for conv in (self.conv1, self.conv2, self.conv3, self.conv4):
            x = F.relu(conv(x))
        features = x.squeeze(-1)  # [N, 128, 1] -> [N, 128]
        hidden = cell = features.new_zeros(1, 128)
        states = []
        for feature in features.split(1):
            hidden, cell = self.lstm_cell(feature, (hidden, cell))
            states.append(hidden)
        logits = self.final_conv(F.relu(torch.cat(states)).unsqueeze(-1))  # -> [N, 1, 1]
        return torch.sigmoid(logits).flatten()


def load_model() -> VoiceActivity:
    """The network with the weights inside the silero-vad package, which need not be imported."""
    spec = find_spec("silero_vad")
    if spec is None or spec.origin is None:
        raise SystemExit("the weights are missing: pip install --no-deps -r examples/weights.txt")
    model = VoiceActivity().eval()
    model.load_state_dict(load_file(Path(spec.origin).parent / "data/silero_vad_16k.safetensors"))
    return model


def vowel(name: str, pitch_hz: float, duration_s: float) -> Tensor:
    """A sung vowel: harmonics of a wavering pitch, each as loud as the formants near it."""
    t = torch.arange(int(duration_s * RATE)) / RATE
    wavering_hz = pitch_hz * (1 + 0.05 * torch.sin(2 * math.pi * 3 * t))
    phase = 2 * math.pi * torch.cumsum(wavering_hz, 0) / RATE
    wave = torch.zeros_like(t)
    for harmonic in range(1, int(4000 / pitch_hz)):
        detune = ((harmonic * pitch_hz - formant) / 100 for formant in VOWELS[name])
        loudness = sum(1 / (1 + d * d) for d in detune) / math.sqrt(harmonic)
        wave += loudness * torch.sin(harmonic * phase)
    fade = (torch.minimum(t, duration_s - t) / 0.03).clamp(0, 1)
    return 0.5 * fade * wave / wave.abs().max()


def recording() -> Tensor:
    """Five seconds: quiet, a word, quiet, loud noise, the word again, quiet."""
    generator = torch.Generator().manual_seed(0)

    def hiss(duration_s: float, loudness: float = 0.001) -> Tensor:
        return loudness * torch.randn(int(duration_s * RATE), generator=generator)

    melody = {"a": 120, "i": 130, "u": 115}
    word = torch.cat([vowel(name, melody[name], 0.27) for name in "aiua"])
    return torch.cat([hiss(1), word, hiss(0.7), hiss(0.7, 0.05), word, hiss(0.5)])


def frames_of(audio: Tensor) -> Tensor:
    """Overlapping frames [N, CONTEXT + FRAME]; a last incomplete frame is dropped."""
    return F.pad(audio, (CONTEXT, 0)).unfold(0, CONTEXT + FRAME, FRAME)


@torch.no_grad()
def detect(model: VoiceActivity, audio: Tensor, device: str) -> Tensor:
    """Probability of speech per frame, computed on `device`, returned on the host."""
    probabilities: Tensor = model.to(device)(frames_of(audio).to(device))
    return probabilities.cpu()


def segments(probabilities: Tensor, threshold: float = 0.5) -> list[tuple[float, float]]:
    """Start and end in seconds of every run of frames above the threshold."""
    speaking = [False, *(probabilities > threshold).tolist(), False]
    edges = [i * FRAME / RATE for i, (a, b) in enumerate(pairwise(speaking)) if a != b]
    return list(zip(edges[::2], edges[1::2], strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="tpu")
    parser.add_argument("--compare", metavar="DEVICE", default="cpu")
    args = parser.parse_args()
    model, audio = load_model(), recording()
    probabilities = detect(model, audio, args.device)
    for start_s, end_s in segments(probabilities):
        print(f"speech from {start_s:.2f} s to {end_s:.2f} s")
    gap = (probabilities - detect(model, audio, args.compare)).abs().max().item()
    print(f"largest difference between {args.device} and {args.compare}: {gap:.1e}")
    if gap > TOLERANCE:
        raise SystemExit(f"the devices differ: expected at most {TOLERANCE:.0e}, got {gap:.1e}")


if __name__ == "__main__":
    main()
