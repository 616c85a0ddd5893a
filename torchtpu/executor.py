"""From a program to a compiled executable: lower with JAX, compile on the target, cache."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from torchtpu import config, logs, recompiles, sharding, targets
from torchtpu.background import Job, Workers
from torchtpu.cache import (
    Codec,
    Entries,
    Key,
    ProgramCache,
    Tiers,
    Unencodable,
    environment,
    hashed,
)
from torchtpu.cache import configured as configured_tiers
from torchtpu.errors import TpuError
from torchtpu.program import ArrayType, Program
from torchtpu.targets import DeviceMesh, Executable, Target

_PRECISION = {"medium": "default", "high": "high", "highest": "highest"}


_matmul_precision = "highest"  # torch's default for float32 matmuls

_world: targets.World | None = None
_axes: tuple[tuple[str, int], ...] = ()

holders: list[Callable[[], None]] = []  # make those let go who keep executables of their own


class Executor:
    """Compiles programs for one target and remembers them, in memory and on disk."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.mesh = target.mesh
        self.cache: ProgramCache[Executable] = ProgramCache(config.get("cache_entries"), holders)
        self.tiers: Tiers = configured_tiers(self.cache)
        self.allow_cache = True  # False: every request compiles
        self.cache_only = False  # True: a compile is an error
        self.dump_to: Path | None = None  # a folder for the StableHLO of what is compiled
        timeless = target.clock_s() is None  # a simulated clock wants launches one by one
        self.workers = Workers(config.get("compile_threads") if timeless else 0)
        self._started: dict[Any, Job[Executable]] = {}
        if self.workers.limit:
            self.tiers.ahead.start(lambda: _here(target.identity()), target.load)

    def executable(self, program: Program) -> Executable:
        """Return the compiled program; the same program text compiles once."""
        if self.mesh is not None and program.shardings is None:
            by_sharding = sharding.BySharding(program, self.mesh, self.executable)
            return Executable(run=by_sharding, module=program.name, nbytes=0)
        key, spelled = self._key(program)
        started = self._started.get(key)
        if started is not None:
            return started.take()
        if not self.allow_cache:
            return self._begin(program)()
        return self.cache.get(key, lambda: self._obtain(program, spelled))

    def start(self, program: Program) -> Job[Executable]:
        """Trace a program now and compile it in another thread, where no cache tier has it.

        On a mesh it is traced when it runs: only then is it known how its inputs lie.
        """
        if self.mesh is not None and program.shardings is None:
            return Job.of(self.executable(program))
        key, spelled = self._key(program)
        started = self._started.get(key)
        if started is not None:
            return started
        found = self.cache.find(key) if self.allow_cache else None
        if found is not None:
            return Job.of(found)
        place = self._place(spelled)
        found = None if place is None else self.tiers.find(place, self._codec(program))
        if found is not None:
            self.cache.add(key, found)
            return Job.of(found)
        finish = self._begin(program)
        job = Job(lambda: self._finish(key, place, program, finish))
        self._started[key] = job
        self.workers.submit(job)
        return job

    def compile_many(self, programs: Iterable[Program]) -> list[Executable]:
        """Return compiled programs; those that are new compile in parallel."""
        return [job.take() for job in [self.start(p) for p in programs]]

    def settle(self) -> None:
        """Wait until nothing compiles in another thread."""
        for job in list(self._started.values()):
            job.wait()

    def _key(self, program: Program) -> tuple[Any, Entries | None]:
        """Return the key in memory, and its spelling if every static argument has one."""
        spelled = program_key(program, _matmul_precision)
        if spelled is None:
            return (program, _matmul_precision), None  # equal by Python's ==
        return (spelled, program.ranks) if program.ranks else spelled, spelled

    def _place(self, spelled: Entries | None) -> Key | None:
        """Return the key in the tiers outside the process; None: memory alone can keep it."""
        identity = self.target.identity()
        if identity is None or not self.allow_cache:
            return None
        if spelled is None:
            self.cache.stats.add(unpersistable=1)
            return None
        try:
            return Key(spelled + _here(identity))
        except Unencodable as error:
            logs.cache.info("%s", error)
            self.cache.stats.add(unpersistable=1)
            return None

    def _codec(
        self, program: Program, compile_: Callable[[], Executable] | None = None
    ) -> Codec[Executable]:
        return Codec(
            compile=compile_ or _never,
            load=lambda code: self.target.load(code, program.ranks),
            dump=lambda made: made.serialize(),
        )

    def _obtain(self, program: Program, spelled: Entries | None) -> Executable:
        """Load a program that an earlier process has compiled, or compile and keep it."""
        place = self._place(spelled)
        if place is None:
            return self._begin(program)()
        return self.tiers.get(
            place, program.name, self._codec(program, lambda: self._begin(program)())
        )

    def _finish(
        self, key: Any, place: Key | None, program: Program, compile_: Callable[[], Executable]
    ) -> Executable:
        """Compile what was traced and keep it; runs in another thread."""
        try:
            if place is None:
                made = compile_()
            else:
                made = self.tiers.get(place, program.name, self._codec(program, compile_))
            if self.allow_cache:
                self.cache.add(key, made)
            return made
        finally:
            self._started.pop(key, None)

    def _begin(self, program: Program) -> Callable[[], Executable]:
        """Trace a program; return what compiles it, in whichever thread."""
        start = time.perf_counter()
        if self.cache_only:
            raise TpuError(
                f"[program cache] expected programs that are compiled already, got {program.name}, "
                "which is not; torch.tpu._set_cache_only(False) lets it compile"
            )
        recompiles.history.note(program, _matmul_precision)
        self.cache.stats.add(traces=1)
        module, outputs = lower(program, self.target.platform, _matmul_precision, self.mesh)
        self._dump(program.name, module)
        traced_s = time.perf_counter() - start

        def compile_() -> Executable:
            start = time.perf_counter()
            with recompiles.shown(program.name):
                types = [(t.shape, t.dtype) for t in outputs]
                executable = self.target.compile(module, types, program.ranks)
            self.cache.stats.compiled(program.name, traced_s + time.perf_counter() - start)
            return executable

        return compile_

    def _dump(self, name: str, module: Any) -> None:
        if self.dump_to is not None:
            self.dump_to.mkdir(parents=True, exist_ok=True)
            file = self.dump_to / f"{recompiles.history.compiles:05d}_{name}.mlir"
            file.write_text(str(module))


def _here(identity: Entries | None) -> Entries:
    """Return what a key says beside the program; raises Unencodable where nobody can say."""
    if identity is None:
        raise Unencodable("[cache] the target keeps no executables")
    return identity + environment.entries() + environment.jax_settings()


def _never() -> Executable:
    raise AssertionError("only looked for")


def program_key(program: Program, matmul_precision: str) -> Entries | None:
    """Return what a program adds to its cache key; None where a static argument has no spelling."""
    try:
        return hashed(
            [
                ("inputs", program.inputs),
                ("nodes", program.nodes),
                ("outputs", program.outputs),
                ("donated", program.donated),
                ("matmul precision", matmul_precision),
                *([("attention", "math")] if config.get("attention") == "math" else []),
                *([] if program.shardings is None else [("shardings", program.shardings)]),
            ]
        )
    except Unencodable:
        return None


def lower(
    program: Program,
    platform: str,
    matmul_precision: str = "highest",
    mesh: DeviceMesh | None = None,
    **placed: Any,
) -> tuple[Any, list[ArrayType]]:
    """Lower a program for a platform ("cpu", "tpu"); return its StableHLO module and output types.

    mesh: where the inputs lie as the program's shardings say. placed: in_shardings and
    out_shardings of jax.jit.
    """
    if mesh is not None and program.shardings is not None:
        placed = {"in_shardings": tuple(mesh.given(spec) for spec in program.shardings)}
    with torch_semantics(matmul_precision):
        traced = jitted(program, mesh, **placed).trace(*argument_types(program))
        module = traced.lower(lowering_platforms=(platform,)).compiler_ir("stablehlo")
    return module, [ArrayType(tuple(o.shape), o.dtype) for o in traced.out_info]


@contextmanager
def torch_semantics(matmul_precision: str) -> Iterator[None]:
    """Trace and lower inside: 64-bit dtypes keep their meaning, and the user's JAX its settings."""
    import jax

    targets.register_rules()
    with jax.enable_x64(True), jax.default_matmul_precision(matmul_precision):
        yield


def jitted(program: Program, mesh: DeviceMesh | None = None, **placed: Any) -> Any:
    """Return a program as a function under jax.jit; placed: its shardings."""
    import jax

    def call(*inputs: Any) -> list[Any]:
        if mesh is None:
            return program(*inputs)
        with sharding.tracing(mesh, inputs, program.shardings):
            return program(*inputs)

    call.__name__ = call.__qualname__ = program.name
    return jax.jit(call, donate_argnums=program.donated, keep_unused=True, **placed)


def argument_types(program: Program) -> list[Any]:
    """Return the types of a program's inputs as JAX has them."""
    import jax

    return [jax.ShapeDtypeStruct(t.shape, t.dtype) for t in program.inputs]


@cache
def current() -> Executor:
    """Return the process's executor; made, with its target, at the first use of the device."""
    for name in config.KNOBS:
        config.get(name)  # a wrong value is an error here, and not at some later op
    logs.start()
    settings = targets.Settings(
        numerics=config.get("sim_numerics"),
        imitate_tpu_matmul=config.get("imitate_tpu_matmul"),
        start_timeout_s=config.get("start_timeout_s"),
        world=_world,
        mesh=_axes,
    )
    return Executor(targets.create(config.get("target"), settings))


def is_made() -> bool:
    """Tell whether the process has used its device."""
    return current.cache_info().currsize > 0


def join(world: targets.World) -> None:
    """Make the process's device that of a rank of a world; it is so from then on.

    TpuError where the device is in use already, alone or as another rank.
    """
    global _world
    if _axes:
        raise TpuError(
            "[init_process_group] expected a process with one device, got one that drives a mesh "
            "(torchtpu.spmd.use): choose either one process per device or one for all"
        )
    if _world is not None and (_world.rank, _world.size) == (world.rank, world.size):
        return
    if is_made():
        as_what = f"as rank {_world.rank} of {_world.size}" if _world else "alone"
        raise TpuError(
            f"[init_process_group] expected a process that has not used device tpu yet, got one "
            f"that uses it {as_what}, to become rank {world.rank} of {world.size}: call "
            "init_process_group before the first tensor on the device, once per process"
        )
    _world = world


def spread(axes: tuple[tuple[str, int], ...]) -> None:
    """Make the process's device a mesh of devices, by names and sizes; it is so from then on.

    TpuError where the device is in use already, or the process is a rank of a world.
    """
    global _axes
    if _axes == axes:
        return
    if _world is not None:
        raise TpuError(
            "[spmd.use] expected a process without a process group, got rank "
            f"{_world.rank} of {_world.size}: choose either one process per device or one for all"
        )
    if is_made() or _axes:
        raise TpuError(
            "[spmd.use] expected a process that has not used device tpu yet: call it before the "
            "first tensor on the device, once per process"
        )
    _axes = axes


def matmul_precision() -> str:
    """Return the float32 matmul precision that programs are lowered with, in JAX's words."""
    return _matmul_precision


def set_float32_matmul_precision(precision: str) -> None:
    """Follow torch: "medium" is one bfloat16 pass on the MXU, "high" three, "highest" six."""
    global _matmul_precision
    _matmul_precision = _PRECISION[precision]
