"""The command line: chips, errors, further subcommands, start-up time."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys

import pytest

from torchtpu.perf_model import cli


def test_chips_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["chips"]) == 0
    out = capsys.readouterr().out
    assert "v6e" in out
    assert "31.24 GiB" in out
    assert "facts incomplete" in out


def test_chips_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["chips", "--format", "json"]) == 0
    chips = {c["name"]: c for c in json.loads(capsys.readouterr().out)["chips"]}
    assert chips["v6e"]["device"]["bf16_flops_per_s"] == 918e12
    assert "device" not in chips["8t"]
    assert chips["v3"]["facts"]["peak_ops_per_s.bf16"]["alternatives"]


def test_one_chip_with_sources(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["chips", "v5p"]) == 0
    out = capsys.readouterr().out
    assert "memory.hbm_bytes_per_s" in out
    assert "doc_v5p: Google Cloud TPU documentation" in out


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["chips", "v6"], "did you mean v6e"),
        (["chip"], "invalid choice"),
        ([], "required"),
        (["chips", "--format", "yaml"], "invalid choice"),
    ],
)
def test_errors_are_one_line_and_exit_code_2(
    argv: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(argv) == cli.EXIT_ERROR
    streams = capsys.readouterr()
    assert message in streams.err
    assert streams.err.count("\n") == 1
    assert not streams.out


def test_help_is_no_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--help"]) == 0
    assert "chips" in capsys.readouterr().out


def test_a_higher_layer_adds_a_subcommand(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cli, "_SUBCOMMANDS", dict(cli._SUBCOMMANDS))

    def configure(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("script")

    def run(arguments: argparse.Namespace) -> int:
        raise cli.CommandError(f"no such script: {arguments.script}")

    command = cli.Subcommand(name="foretell", help="e", configure=configure, run=run)
    cli.register(command)
    assert cli.main(["foretell", "x.py"]) == cli.EXIT_ERROR
    assert capsys.readouterr().err == "no such script: x.py\n"
    with pytest.raises(ValueError, match="foretell: a second subcommand"):
        cli.register(command)


def test_chips_needs_neither_torch_nor_jax_nor_numpy() -> None:
    code = (
        "import sys; from torchtpu.perf_model import cli; cli.main(['chips']);"
        "print(sorted({'torch', 'jax', 'jaxlib', 'numpy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
