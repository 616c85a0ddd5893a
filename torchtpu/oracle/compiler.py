"""The TPU compiler with a memory: what it said of a program is kept on disk, not asked again."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import zlib
from collections.abc import Mapping
from dataclasses import asdict
from functools import cached_property
from typing import Any

from torchtpu import config
from torchtpu.cache import directory
from torchtpu.cache.entry import Entry
from torchtpu.cache.key import Key
from torchtpu.cache.store import Store
from torchtpu.cache.tier import Tier
from torchtpu.cache.tiers import host_directory
from torchtpu.private import jax as private
from torchtpu.targets import TargetError, tpu_compiler
from torchtpu.targets.compile_batch import Compilation, Job, compilation, compile_batch

_FORMAT = "1"  # of what is kept
_FOLDER = "oracle"
_NO_COMPILER = "[tpu compiler]"  # begins what is no answer about a program
_LIMIT_S = 900.0  # for one program; what takes longer is priced by the model
_FLAGS = ("LIBTPU_INIT_ARGS", "XLA_FLAGS")
_INSTALL = "pip install 'torchtpu[tpu]' (or set TORCHTPU_ORACLE_PYTHON to a Python that has it)"


def python() -> str:
    """Return the interpreter that compiles: that of TORCHTPU_ORACLE_PYTHON, or this one."""
    return str(config.get("oracle_python")) or sys.executable


def installed() -> bool:
    """Tell whether there is a TPU compiler to ask, whether or not it works."""
    return bool(config.get("oracle_python") or tpu_compiler.library())


def found() -> tpu_compiler.TpuCompiler:
    """Return the compiler of the settings. Raises TargetError where it is missing or mismatched."""
    chosen = python()
    try:
        here = chosen == sys.executable
        compiler = tpu_compiler.here() if here else tpu_compiler.of(chosen)
    except (OSError, ValueError) as error:
        raise TargetError(
            f"[oracle libtpu] TORCHTPU_ORACLE_PYTHON={chosen} does not answer: {error}; expected "
            "a Python in whose environment `pip install 'jax[tpu]'` was run"
        ) from error
    if not compiler.library or not os.path.isfile(compiler.library):
        where = compiler.library or f"the environment of {chosen}"
        raise TargetError(f"[oracle libtpu] no libtpu in {where}: {_INSTALL}")
    if "jax" not in compiler.versions:
        raise TargetError(f"[oracle libtpu] no jax in the environment of {chosen}: {_INSTALL}")
    if why := compiler.mismatch():
        raise TargetError(f"[oracle libtpu] {why}: {_INSTALL}")
    return compiler


class OracleCompiler:
    """Compiles programs for devices of one topology. Raises TargetError without a libtpu."""

    def __init__(self, topology: str, *, keep: bool = True) -> None:
        self.topology = topology
        self.compiled = 0  # programs that were not known
        self._environment = found()
        self._tier = Tier("oracle cache", _open if keep and _is_kept() else None)

    @cached_property
    def version(self) -> str:
        """libtpu's version."""
        return self._environment.versions.get("libtpu", "of unknown version")

    def key(self, module: Any, devices: int) -> Key:
        """Return what decides the answer for a module on 1 or all devices."""
        text = module.operation.get_asm(enable_debug_info=False)
        flags = [(name, os.environ[name]) for name in _FLAGS if name in os.environ]
        return Key(
            (
                ("format", _FORMAT),
                ("program", hashlib.sha256(text.encode()).hexdigest()),
                ("topology", self.topology),
                ("devices", str(devices)),
                *sorted(self._environment.versions.items()),
                *flags,
            )
        )

    def compile(self, modules: Mapping[str, tuple[Any, int]]) -> dict[str, Compilation]:
        """Return the answers for modules (name -> module and devices, 1 or all), by name.

        A failure of the compiler is an answer; only that it has no room is kept. Raises TargetError
        where there is no compiler for the topology.
        """
        keys = {name: self.key(*program) for name, program in modules.items()}
        answers = {name: a for name, key in keys.items() if (a := self._kept(key)) is not None}
        jobs = [
            Job(
                name=name,
                topology=self.topology,
                devices=devices,
                module=self._bytes(module),
            )
            for name, (module, devices) in modules.items()
            if name not in answers
        ]
        made = compile_batch(jobs, self._environment.python, _LIMIT_S) if jobs else {}
        for answer in made.values():
            if answer.failure.startswith(_NO_COMPILER):
                raise TargetError(f"[oracle libtpu] {answer.failure}")
        self.compiled += len(jobs)
        for name, answer in made.items():
            if answer.report is not None or answer.out_of_memory:
                self._tier.write(Entry.of(keys[name], name, _packed(answer)))
        return answers | made

    def _kept(self, key: Key) -> Compilation | None:
        entry = self._tier.read(key.digest)
        if entry is None:
            return None
        try:
            return compilation(json.loads(zlib.decompress(entry.payload)))
        except (ValueError, KeyError, TypeError, zlib.error) as error:
            self._tier.reject(key.digest, error)
            return None

    def _bytes(self, module: Any) -> bytes:
        if self._environment.python != sys.executable:
            return private.portable(module)
        return private.bytecode(module)


def _packed(answer: Compilation) -> bytes:
    return zlib.compress(json.dumps(asdict(answer)).encode(), 6)


def _is_kept() -> bool:
    return bool(config.get("cache_name") != "disabled")


def _open() -> Store:
    root = host_directory(config.get("cache_dir"))
    directory.prepare(root, shared=False)
    return Store(root / _FOLDER, bound_bytes=config.get("cache_bytes"))
