"""Every example does on the device what its docstring says."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

from examples import llama3_8b, sentence_transformer, train_digits, voice_activity
from tests.models import DEVICE, LLAMA

MODES = ["DEFER_NEVER", "DEFER_NEVER_AND_LAUNCH_BLOCKING", "DEFER_AND_FUSE"]


@pytest.fixture(params=MODES)
def each_mode(request: pytest.FixtureRequest) -> Iterator[None]:
    """Run a test once in every eager mode."""
    with torch.tpu.set_eager_mode(torch.tpu.EagerMode[request.param]):
        yield


def test_digits_hold_out_a_fixed_fifth() -> None:
    once, twice = train_digits.digits(), train_digits.digits()
    assert len(once.held_out_labels) == 359
    assert len(once.train_labels) == 1438
    assert torch.equal(once.held_out_images, twice.held_out_images)


@pytest.mark.parametrize("name", train_digits.RECIPES)
def test_digits_start_like_cpu(name: str) -> None:
    ours = train_digits.train(name, DEVICE, steps=4, quiet=True)
    theirs = train_digits.train(name, "cpu", steps=4, quiet=True)
    assert_close(ours.losses, theirs.losses, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("name", "bar"), [("conv", 0.97), ("vit", 0.95)])
def test_digits_reach_their_accuracy(name: str, bar: float) -> None:
    assert train_digits.train(name, DEVICE, quiet=True).accuracy >= bar


def test_digits_command_compares(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--model", "conv", "--device", DEVICE, "--compare", "cpu", "--steps", "2"]
    monkeypatch.setattr(sys, "argv", ["train_digits.py", *arguments])
    train_digits.main()
    out = capsys.readouterr().out
    assert f"conv on {DEVICE}: 2 steps" in out
    assert "largest difference of the loss curve to cpu" in out


def test_word_pieces() -> None:
    word_piece = sentence_transformer.WordPiece(sentence_transformer.weights_folder() / "vocab.txt")
    known = {number: piece for piece, number in word_piece.ids.items()}
    pieces = [known[number] for number in word_piece.encode("Héllo, tokenizers ☃!")]
    expected = ["[CLS]", "hello", ",", "token", "##izer", "##s", "[UNK]", "!", "[SEP]"]
    assert pieces == expected


@pytest.mark.usefixtures("each_mode")
def test_sentences_embed_and_rank_like_cpu() -> None:
    texts = sentence_transformer.sentences()
    assert len(set(texts)) == 50
    model = sentence_transformer.load_model()
    batch = ["How do I send an e-mail?", *texts]
    ours, theirs = (sentence_transformer.embed(model, batch, d) for d in (DEVICE, "cpu"))
    assert_close(ours, theirs, rtol=0, atol=1e-4)
    ranked = sentence_transformer.ranking(ours)
    assert ranked == sentence_transformer.ranking(theirs)
    assert sentence_transformer.MODULES.split()[ranked[0]] == "smtplib"


@pytest.mark.usefixtures("each_mode")
def test_voice_activity_equals_cpu_and_finds_both_words() -> None:
    model, audio = voice_activity.load_model(), voice_activity.recording()
    ours, theirs = (voice_activity.detect(model, audio, d) for d in (DEVICE, "cpu"))
    assert_close(ours, theirs, rtol=0, atol=1e-4)
    spoken = [s for s in voice_activity.segments(ours) if s[1] - s[0] > 0.5]
    assert len(spoken) == 2
    for (start_s, end_s), word_s in zip(spoken, (1.0, 3.48), strict=True):
        assert abs(start_s - word_s) < 0.2
        assert abs(end_s - word_s - 1.08) < 0.2


def test_llama_learns_its_tokens() -> None:
    torch.manual_seed(0)
    losses = llama3_8b.train(LLAMA, DEVICE, batch=2, seq=16, steps=3)
    assert all(later < earlier for earlier, later in pairwise(losses))


def test_llama_has_eight_billion_parameters() -> None:
    with torch.device("meta"):
        model = llama3_8b.Llama(llama3_8b.Config())
    assert sum(parameter.numel() for parameter in model.parameters()) == 8_030_261_248


def test_readme_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    text = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
    code, *_ = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    exec(compile(code, "README.md", "exec"), {"__name__": "readme"})
    loss = re.search(r"tensor\((.*?), device='tpu:0'", capsys.readouterr().out)
    assert loss
    assert float(loss[1]) < 5
