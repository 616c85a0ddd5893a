"""Layers and cells of RNN, LSTM and GRU under vendors' names, by torch's functions on the CPU."""

from __future__ import annotations

import warnings
from typing import Any

import torch

from tests.ops.samples.by_autograd import gradients
from tests.ops.samples.call import Call, call, out, values

_MODES = ("relu", "tanh", "lstm", "gru")
_LSTM = 2
_LAYERS, _BATCH, _INPUT, _HIDDEN = 2, 3, 5, 4
_PACKED = [3, 2, 2, 1]  # sequences still running at each step


def made() -> list[tuple[str, Call]]:
    """Return overloads' names, several in a string where they share a call, with their calls."""
    return [*_layers(), *_dropped(), *_flattened(), *_lstm_gradients(), *_gru_cells()]


class _Network:
    """What a call is about: the tensors of a network, and its options in the schema's order."""

    def __init__(
        self,
        mode: str,
        *,
        both: bool = False,
        bias: bool = True,
        packed: bool = False,
        batch_first: bool = False,
        projection: int = 0,
    ) -> None:
        gates = {"lstm": 4, "gru": 3}.get(mode, 1) * _HIDDEN
        shown = projection or _HIDDEN
        directions = 1 + both
        steps = (_BATCH, 4) if batch_first else (4, _BATCH)
        self.x = values(*((sum(_PACKED),) if packed else steps), _INPUT)
        self.hx = values(_LAYERS * directions, _BATCH, shown) / 2
        self.cx = values(_LAYERS * directions, _BATCH, _HIDDEN) / 3 if mode == "lstm" else None
        self.weights = []
        for width in (_INPUT, shown * directions):
            own = [values(gates, width) / 3, values(gates, shown) / 2]
            own += [values(gates) / 3, values(gates) / 5] if bias else []
            own += [values(projection, _HIDDEN) / 2] if projection else []
            self.weights += own * directions
        self.per_cell = len(own)
        self.mode, self.sizes = _MODES.index(mode), [_HIDDEN, projection]
        self.options: list[Any] = [
            _LAYERS,
            batch_first,
            0.0,
            True,
            both,
            _PACKED if packed else [],
            None,
        ]

    def forward(self, vendor: str) -> Call:
        """A call of _cudnn_rnn or miopen_rnn."""
        if vendor == "cudnn":
            start = [self.x, self.weights, self.per_cell, None, self.hx, self.cx, self.mode]
            return call(*start, *self.sizes, *self.options, reference=_cudnn)
        start = [self.x, self.weights, self.per_cell, self.hx, self.cx, self.mode]
        return call(*start, self.sizes[0], *self.options, reference=_miopen)

    def backward(self, vendor: str, *, only_output: bool = False) -> Call:
        """A call of _cudnn_rnn_backward or miopen_rnn_backward."""
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="LSTM with projections")  # of speed
            results = _run(self.x, self.weights, self.hx, self.cx, self.mode, *self.options[1:])
        grads = [r.cos() if r.numel() else None for r in results]
        grads = [grads[0], None, None] if only_output else grads
        start = [self.x, self.weights, self.per_cell, out(0), self.hx, self.cx, results[0], *grads]
        sizes = self.sizes if vendor == "cudnn" else self.sizes[:1]
        end = [out(0, dtype=torch.uint8), [True] * 4]
        given = [*start, self.mode, *sizes, *self.options, *end]
        return call(*given, reference=_cudnn_backward if vendor == "cudnn" else _miopen_backward)


def _run(
    x: Any,
    weights: Any,
    hx: Any,
    cx: Any,
    mode: int,
    batch_first: bool,
    dropout: float,
    train: bool,
    both: bool,
    batch_sizes: list[int],
    _: Any = None,
) -> tuple[torch.Tensor, ...]:
    """Output, last hidden and last cell, which is empty unless of an LSTM."""
    op: Any = (torch.rnn_relu, torch.rnn_tanh, torch.lstm, torch.gru)[mode]
    state = hx if cx is None else (hx, cx)
    options = (len(weights) // (_LAYERS * (1 + both)) >= 4, _LAYERS, dropout, train, both)
    if batch_sizes:
        made = op(x, torch.tensor(batch_sizes), state, weights, *options)
    else:
        made = op(x, state, weights, *options, batch_first)
    return made if len(made) == 3 else (*made, hx.new_empty(0))


def _cudnn(
    x: Any, weights: Any, _: int, buffer: Any, hx: Any, cx: Any, mode: int, *rest: Any
) -> Any:
    """The reserve is this device's own (empty without dropout), the buffer nobody's."""
    made = _run(x, weights, hx, cx, mode, *rest[3:])
    return *made, torch.empty(0, dtype=torch.uint8), torch.empty(0)


def _miopen(x: Any, weights: Any, stride: int, hx: Any, cx: Any, *rest: Any) -> Any:
    mode, hidden, *options = rest
    return _cudnn(x, weights, stride, None, hx, cx, mode, hidden, 0, *options)


def _cudnn_backward(*args: Any) -> Any:
    x, weights, _, _, hx, cx, _, *grads_and_rest = args
    grads, (mode, _, _, _, *options) = grads_and_rest[:3], grads_and_rest[3:-2]
    wanted = [place for place, grad in enumerate(grads) if grad is not None]
    states = [hx] if cx is None else [hx, cx]

    def forward(x: Any, *leaves: Any) -> Any:
        cell = leaves[1] if mode == _LSTM else None
        results = _run(x, leaves[len(states) :], leaves[0], cell, mode, *options)
        return [results[place] for place in wanted]

    of_input, of_hidden, *found = gradients(
        forward, [grads[place] for place in wanted], x, *states, *weights
    )
    return of_input, of_hidden, found.pop(0) if mode == _LSTM else None, found


def _miopen_backward(*args: Any) -> Any:
    return _cudnn_backward(*args[:12], 0, *args[12:])


def _layers() -> list[tuple[str, Call]]:
    found = []
    for vendor, name in (("cudnn", "_cudnn_rnn"), ("miopen", "miopen_rnn")):
        networks = [_Network(mode, both=True) for mode in _MODES]
        networks += [_Network(mode, both=True, packed=True) for mode in ("lstm", "gru")]
        networks += [_Network(mode, bias=False, batch_first=True) for mode in ("tanh", "lstm")]
        networks += [_Network("lstm", projection=3)] if vendor == "cudnn" else []
        for network in networks:
            found += [
                (name, network.forward(vendor)),
                (f"{name}_backward", network.backward(vendor)),
            ]
        found.append((f"{name}_backward", networks[2].backward(vendor, only_output=True)))
    return found


def _dropped() -> list[tuple[str, Call]]:
    """Dropout between the layers, whose reserve is a key of 16 bytes."""
    network = _Network("gru")
    network.options[2] = 0.5

    def reserved(*args: Any) -> Any:
        output, hidden, cell, _, buffer = _cudnn(*args)
        return output, hidden, cell, torch.empty(16, dtype=torch.uint8), buffer

    given = network.forward("cudnn").args
    return [("_cudnn_rnn", call(*given, random=True, reference=reserved))]


def _flattened() -> list[tuple[str, Call]]:
    def joined(weights: Any, *_: Any) -> Any:
        return torch.cat([w.flatten() for w in weights])

    found = []
    for network in (_Network("gru"), _Network("lstm", bias=False, both=True)):
        sizes = (network.per_cell, _INPUT, network.mode, _HIDDEN, 0, _LAYERS)
        both = network.options[4]
        given = call(network.weights, *sizes, False, both, reference=joined)
        found.append(("_cudnn_rnn_flatten_weight", given))
    return found


def _lstm_gradients() -> list[tuple[str, Call]]:
    gates, cx, grad = values(2, 12), values(2, 3), values(2, 3).cos()
    activated = torch.cat([gates[:, :6].sigmoid(), gates[:, 6:9].tanh(), gates[:, 9:].sigmoid()], 1)
    i, f, g, _ = activated.chunk(4, 1)
    saved = (cx, f * cx + i * g, activated)
    name = "_thnn_fused_lstm_cell_backward_impl"
    return [
        (name, call(grad, grad.sin(), *saved, True, reference=_lstm_backward)),
        (name, call(grad, None, *saved, False, reference=_lstm_backward)),
        (name, call(None, grad, *saved, True, reference=_lstm_backward)),
    ]


def _lstm_backward(grad_h: Any, grad_c: Any, cx: Any, cy: Any, saved: Any, bias: bool) -> Any:
    """By autograd from the gates before they were activated."""

    def cell(gates: Any, cx: Any) -> Any:
        i, f, g, o = gates.chunk(4, 1)
        new = f.sigmoid() * cx + i.sigmoid() * g.tanh()
        return o.sigmoid() * new.tanh(), new

    i, f, g, o = saved.chunk(4, 1)
    gates = torch.cat([i.logit(), f.logit(), g.atanh(), o.logit()], 1)
    grads = [torch.zeros_like(cx) if g is None else g for g in (grad_h, grad_c)]
    of_gates, of_cell = gradients(cell, grads, gates, cx)
    return of_gates, of_cell, of_gates.sum(0) if bias else None


def _gru_cells() -> list[tuple[str, Call]]:
    gates, hx = (values(2, 9), values(2, 9).cos()), values(2, 3) / 2
    biases = (values(9) / 3, values(9) / 4)
    grad, saved = values(2, 3).cos(), _gru_cell(*gates, hx)[1]
    name = "_thnn_fused_gru_cell"
    return [
        (name, call(*gates, hx, reference=_gru_cell)),
        (name, call(*gates, hx, *biases, reference=_gru_cell)),
        (f"{name}_backward", call(grad, saved, True, reference=_gru_backward)),
        (f"{name}_backward", call(grad, saved, False, reference=_gru_backward)),
    ]


def _gru_cell(inputs: Any, hidden: Any, hx: Any, b: Any = 0, hidden_b: Any = 0) -> Any:
    """The formula of torch.nn.GRUCell; the second result is what CUDA's kernel keeps."""
    (ir, iz, new), (hr, hz, hn) = (inputs + b).chunk(3, 1), (hidden + hidden_b).chunk(3, 1)
    r, z = (ir + hr).sigmoid(), (iz + hz).sigmoid()
    n = (new + r * hn).tanh()
    return (1 - z) * n + z * hx, torch.cat([r, z, n, hx, hn], 1)


def _gru_backward(grad: Any, saved: Any, bias: bool) -> Any:
    """By autograd from the gates before they were activated, all of them on the input's side."""
    r, z, n, hx, hn = saved.chunk(5, 1)
    inputs = torch.cat([r.logit(), z.logit(), n.atanh() - r * hn], 1)
    hidden = torch.cat([torch.zeros_like(r), torch.zeros_like(z), hn], 1)
    found = gradients(lambda *given: _gru_cell(*given)[0], grad, inputs, hidden, hx)
    sums = [found[0].sum(0), found[1].sum(0)] if bias else [None, None]
    return *found, *sums
