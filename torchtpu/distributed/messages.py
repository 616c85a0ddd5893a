"""Messages between two members of a group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torchtpu import executor
from torchtpu.distributed import programs
from torchtpu.distributed.calling import Caller, channel
from torchtpu.distributed.engine import Call, signature
from torchtpu.distributed.operands import Tensors, described, keep, on_device, operands
from torchtpu.distributed.work import Work
from torchtpu.eager import blame
from torchtpu.errors import TpuError
from torchtpu.storage import launch_lock


class Messenger(Caller):
    """A group whose members send each other tensors."""

    def send(self, tensors: Tensors, to: int, tag: int = 0) -> Any:
        """Send to a member."""
        if not on_device(tensors):
            return self._by_host("send", tensors, to, tag)
        self._check_peer("send", to)
        return self._message("send", tensors, [(self._place, to)], 0, tag)

    def recv(self, tensors: Tensors, source: int, tag: int = 0) -> Any:
        """Receive from a member."""
        if not on_device(tensors):
            return self._by_host("recv", tensors, source, tag)
        self._check_peer("recv", source)
        return self._message("recv", tensors, [(source, self._place)], 1, tag)

    def recv_anysource(self, tensors: Tensors, tag: int = 0) -> Any:
        """Receive from whoever sends first."""
        if not on_device(tensors):
            return self._by_host("recv_anysource", tensors, tag)
        others = [n for n in range(self.size()) if n != self._place]
        return self._message("recv", tensors, [(n, self._place) for n in others], 1, tag)

    def _check_peer(self, name: str, peer: int) -> None:
        if not 0 <= peer < self.size() or peer == self._place:
            raise TpuError(
                f"[{name}] expected another member of a group of {self.size()}, got {peer}"
            )

    def _message(
        self, name: str, tensors: Tensors, channels: list[tuple[int, int]], side: int, tag: int
    ) -> Any:
        (tensor,) = tensors
        (held,) = operands(tensors)
        shapes = (tuple(tensor.shape),)
        pairs = tuple((self._ranks[a], self._ranks[b]) for a, b in channels)

        def launch(index: int, _payloads: Sequence[bytes]) -> list[Any]:
            program = programs.together(
                "message", programs.message, [held.layout.type], 1, pairs[index], shapes=shapes
            )
            with launch_lock:
                results: list[Any] = executor.current().executable(program).run([held.array])
                held.release()
                if side:
                    work.source = channels[index][0]
                    keep(tensors, results)
            return results

        words = described([held.layout])
        work = Work(lambda _, seconds: self._engine.wait(call, seconds), tensors)
        call = Call(
            name=name,
            channels=tuple(channel(f"{self._name} {c} {tag}") | 1 << 31 for c in channels),
            ranks=pairs,
            place=side,
            signature=signature(("message", words)),
            words=f"{name}({words}, tag {tag})",
            launch=launch,
            work=work,
            timeout_s=self._timeout_s,
            line=blame.user_place(),
        )
        return self._asked(call)
