"""What a published serving run takes, from the times of one prefill and of one decode step."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torchtpu.perf_model.facts import FactError

LENGTHS = ("fixed", "uniform", "exponential")
_GOLDEN = (math.sqrt(5) - 1) / 2  # its multiples spread evenly over [0, 1)


@dataclass(frozen=True, kw_only=True, slots=True)
class Requests:
    """What a benchmark sends, all of it at once, and how many of them are served at a time.

    count: requests. slots: of them served at a time; the next one takes a slot that gets free.
    mean: tokens of an answer. lengths: how they spread. fixed: all alike. uniform: between
    2 mean - longest and longest. exponential: cut off at `longest`. longest: tokens.
    """

    count: int
    slots: int
    mean: float
    lengths: str = "fixed"
    longest: float = 0.0

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Requests:
        """Those of a serving row. Raises FactError."""
        lengths, mean = config.get("lengths", "fixed"), float(config["output_tokens"])
        longest = float(config.get("longest_output", mean))
        made = cls(
            count=config.get("requests", config["batch"]),
            slots=config["batch"],
            mean=mean,
            lengths=lengths,
            longest=longest,
        )
        if lengths not in LENGTHS:
            raise FactError(f"[serving] lengths: expected one of {LENGTHS}, got {lengths!r}")
        least = {"fixed": longest, "uniform": longest / 2, "exponential": 0.0}[lengths]
        most = longest / 2 if lengths == "exponential" else longest
        if not least <= mean <= most or mean <= 0:
            raise FactError(
                f"[serving] output_tokens: expected {least:g} to {most:g} for {lengths} lengths "
                f"of at most {longest:g}, got {mean:g}"
            )
        return made

    @property
    def tokens(self) -> float:
        """Of all answers."""
        return self.count * self.mean

    def answers(self) -> Iterator[float]:
        """Tokens of each answer: quantiles of the spread, in an order that mixes them."""
        scale = _exponential_scale(self.mean, self.longest) if self.lengths == "exponential" else 0
        for number in range(self.count):
            share = (number + 0.5) * _GOLDEN % 1.0
            if self.lengths == "fixed":
                yield self.mean
            elif self.lengths == "uniform":
                yield self.longest - 2 * (self.longest - self.mean) * share
            else:
                yield -scale * math.log1p(share * math.expm1(-self.longest / scale))

    def steps(self) -> float:
        """Decode steps until the last answer is done, each slot one token a step."""
        free = [0.0] * min(self.slots, self.count)
        for answer in self.answers():
            heapq.heapreplace(free, free[0] + answer)
        return max(free)


def _exponential_scale(mean: float, longest: float) -> float:
    """The scale of an exponential distribution whose mean, cut off at `longest`, is `mean`."""
    low, high = mean / 2, 1e3 * longest
    for _ in range(100):
        scale = (low + high) / 2
        found = scale - longest / math.expm1(min(700.0, longest / scale))
        low, high = (scale, high) if found < mean else (low, scale)
    return low


def decode_points(config: Mapping[str, Any]) -> list[Sequence[str]]:
    """Command lines whose decode steps have to be known: of a full batch, and of `few_batch`
    sequences where a step of fewer is a cheaper one.
    """
    return [config[name] for name in ("decode", "decode_few") if name in config]


def seconds(config: Mapping[str, Any], prefill_s: float, decode_s: Sequence[float]) -> float:
    """Until all requests are answered. prefill_s: of one prompt. decode_s: of `decode_points`.

    Prompts and steps take turns on the same chips. A step takes time linear in the sequences that
    it has, where `decode_few` tells the slope, and the same always where the batch is padded.
    """
    requests = Requests.of(config)
    full, *few = decode_s
    slope = (full - few[0]) / (config["batch"] - config["few_batch"]) if few else 0.0
    idle = full - slope * requests.slots
    return requests.count * prefill_s + idle * requests.steps() + slope * requests.tokens


def token_s(config: Mapping[str, Any], prefill_s: float, decode_s: Sequence[float]) -> float:
    """Mean time between two tokens of an answer: a step, and its share of the prompts between."""
    requests = Requests.of(config)
    return decode_s[0] + requests.slots / requests.mean * prefill_s


def value(
    row_metric: str, config: Mapping[str, Any], prefill_s: float, decode_s: Sequence[float]
) -> float:
    """A published quantity of the whole system: seconds of a token or step, or tokens/s."""
    if row_metric == "decode_step":
        return decode_s[0]
    if row_metric == "time_per_output_token":
        return token_s(config, prefill_s, decode_s)
    return Requests.of(config).tokens / seconds(config, prefill_s, decode_s)
