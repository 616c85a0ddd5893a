"""How a group's collectives run: prepared once per signature, agreed on, launched, waited for."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from typing import Any

import torch
import torch.distributed as dist

from torchtpu import executor
from torchtpu.distributed import captured, meeting, programs
from torchtpu.distributed.base import NamedGroup
from torchtpu.distributed.engine import Call, Engine, signature
from torchtpu.distributed.host_group import over_gloo
from torchtpu.distributed.operands import (
    Operand,
    Tensors,
    described,
    keep,
    lose,
    on_device,
    operands,
    room,
)
from torchtpu.distributed.work import Work, Works, done
from torchtpu.dtypes import to_numpy
from torchtpu.eager import blame
from torchtpu.eager.capture import CannotCapture
from torchtpu.program import ArrayType
from torchtpu.storage import launch_lock

MAX_SIGNATURES = 1024  # prepared collectives; shapes that never come again are forgotten


class Memory(Enum):
    """Where a collective's results get their memory from."""

    NEW = "new"
    IN_PLACE = "the inputs"
    ROOM = "what the outputs were"  # whose old arrays are inputs of the program, behind the others


@dataclass(frozen=True, slots=True)
class Prepared:
    """A collective of one signature: its program, and what members have to agree on."""

    run: Callable[[Sequence[Any]], list[Any]]
    memory: Memory
    signature: int
    words: str

    def launch(self, held: Sequence[Operand], outputs: Tensors) -> list[Any]:
        """Run the program on values; its results become those of the outputs."""
        with launch_lock:
            if self.memory is Memory.IN_PLACE:
                values = [operand.overwritable() for operand in held]
            else:
                values = [operand.array for operand in held]
                if self.memory is Memory.ROOM:
                    values += room(outputs, held)
            try:
                results = self.run(values)
            except BaseException:  # also an interrupt: the memory may be taken over by then
                lose(outputs)
                raise
            finally:
                for operand in held:
                    operand.release()
            keep(outputs, results)
            return results


_known: dict[Hashable, Prepared] = {}
executor.holders.append(_known.clear)


class Caller(NamedGroup):
    """The processes `ranks` (global numbers, in the group's order) and how they do a thing."""

    def __init__(
        self,
        engine: Engine,
        rank: int,
        ranks: Sequence[int],
        name: str,
        store: Any,
        timeout: timedelta,
    ) -> None:
        super().__init__(rank, len(ranks), name)
        self._engine = engine
        self._place = rank
        self._ranks = tuple(ranks)
        self._store = store
        self._timeout_s = timeout.total_seconds()
        self._channel = channel(f"{name} {self._ranks}")
        self._is_world = not dist.is_initialized()
        self._host: Any = None  # torch's gloo, for tensors on the CPU
        self._batch: list[Work] | None = None  # what is asked for between two marks

    @property
    def members(self) -> tuple[int, ...]:
        """The global numbers of the members, in the group's order."""
        return self._ranks

    def shutdown(self) -> None:
        """Leave the group; the last to go leaves the world."""
        if self._is_world:
            meeting.part()

    abort = shutdown

    def _collective(
        self,
        name: str,
        fn: Callable[..., Any],
        inputs: Tensors,
        outputs: Tensors,
        opts: Any,
        *,
        said: str = "",
        same: object = None,
        finish: Callable[[], None] | None = None,
        memory: Memory = Memory.NEW,
        **static: Any,
    ) -> Work:
        """Run `fn` of programs.py on the inputs' values; its results become the outputs'.

        said: more words about it; same: what members must agree on, if not on all the words.
        """
        on_device([*inputs, *outputs])
        if captured.is_on():
            captured.add(name, fn, inputs, outputs, self._ranks, **static)
            if finish is not None:
                finish()
            return done(outputs)
        held = operands(inputs)
        prepared = self._prepared(
            name, fn, held, outputs, said=said, same=same, memory=memory, **static
        )

        def launch(_payloads: Sequence[bytes]) -> list[Any]:
            results = prepared.launch(held, outputs)
            if finish is not None:
                finish()
            return results

        signed, words = prepared.signature, prepared.words
        return self._submit(name, words, signed, launch, outputs, limit(opts))

    def _prepared(
        self,
        name: str,
        fn: Callable[..., Any],
        held: Sequence[Operand],
        outputs: Tensors,
        *,
        said: str = "",
        same: object = None,
        memory: Memory = Memory.NEW,
        **static: Any,
    ) -> Prepared:
        """Return the collective that runs `fn(arrays, shapes=, size=, **static)`."""
        shapes = tuple([tuple(t.shape) for t in outputs])
        layouts = tuple([operand.layout for operand in held])
        key = (name, self._ranks, self._place, memory, layouts, shapes, said, *static.values())
        found = _known.get(key)
        if found is None:
            types = [layout.type for layout in layouts]
            donated = range(len(types)) if memory is Memory.IN_PLACE else ()
            if memory is Memory.ROOM:
                room_for = [ArrayType(tuple(t.shape), to_numpy(t.dtype)) for t in outputs]
                donated = range(len(types), len(types) + len(room_for))
                types += room_for
            program = programs.together(
                name, fn, types, len(outputs), self._ranks, tuple(donated), shapes=shapes, **static
            )
            options = "".join(f", {key}={value}" for key, value in static.items())
            words = f"{name}({described(layouts)}{options}{said and ', ' + said})"
            run = executor.current().executable(program).run
            found = Prepared(run, memory, signature(same or words), words)
            if len(_known) >= MAX_SIGNATURES:
                _known.clear()
            _known[key] = found
        return found

    def _submit(
        self,
        name: str,
        words: str,
        signed: int,
        launch: Callable[[Sequence[bytes]], list[Any]],
        outputs: Tensors,
        timeout_s: float | None,
        payload: bytes = b"",
    ) -> Work:
        return self._asked(
            self._call(name, words, signed, launch, outputs, timeout_s, payload=payload)
        )

    def _call(
        self,
        name: str,
        words: str,
        signed: int,
        launch: Callable[[Sequence[bytes]], list[Any]],
        outputs: Tensors,
        timeout_s: float | None,
        **more: Any,
    ) -> Call:
        work = Work(lambda _, seconds: self._engine.wait(call, seconds), outputs)
        call = Call(
            name=name,
            channels=(self._channel,),
            ranks=(self._ranks,),
            place=self._place,
            signature=signed,
            words=words,
            launch=lambda _, payloads: launch(payloads),
            work=work,
            timeout_s=timeout_s or self._timeout_s,
            line=blame.user_place(),
            **more,
        )
        return call

    def run_graph(self, about: object, name: str, launch: Callable[[], list[Any]]) -> bool:
        """Launch a program with collectives of this group, if all members are about to do so.

        about: what they have to agree on; None: this one runs op by op, and so will they.
        launch: returns arrays of the results. False: not all agree; nothing was launched.
        """
        launched = []

        def start(_payloads: Sequence[bytes]) -> list[Any]:
            launched.append(about is not None)
            return launch() if about is not None else []

        signed = signature(about or "op by op", graph=True)
        words = f"{name}, compiled" if about else f"{name}, compiled, op by op"
        call = self._call(name, words, signed, start, [], None, may_differ=True)
        self._engine.submit(call)
        self._engine.wait_for_launch(call)
        return launched == [True]

    def _asked(self, call: Call) -> Work:
        if captured.is_on():
            raise CannotCapture(f"[{call.name}] is launched on its own, not inside a program")
        work = self._engine.submit(call)
        if self._batch is not None:
            self._batch.append(work)
        return work

    def _start_coalescing(self, _device: torch.device) -> None:
        self._batch = []

    def _end_coalescing(self, _device: torch.device) -> Work | None:
        works, self._batch = self._batch or [], None
        return Works(works) if works else None

    def _by_host(self, name: str, *arguments: Any) -> Any:
        """Run a collective of CPU tensors over torch's gloo, in a group of the same members."""
        if self._host is None:
            self._host = over_gloo(self._store, self.rank(), self.size(), self._timeout_s)
        return getattr(self._host, name)(*(a for a in arguments if a is not None))


def channel(name: str) -> int:
    """Return the number of what has a count of calls of its own; never 0."""
    return zlib.crc32(name.encode()) & 0x7FFFFFFF or 1


def limit(opts: Any) -> float | None:
    """Return the limit in seconds that a call asks for; None: the group's."""
    wanted = getattr(opts, "timeout", None)
    seconds = wanted.total_seconds() if isinstance(wanted, timedelta) else 0.0
    return seconds if seconds > 0 else None
