"""Why programs compile again: what differed, how often, and a limit for it."""

from torchtpu.recompiles.history import CompileLimitError, explain_recompiles, history
from torchtpu.recompiles.progress import shown
from torchtpu.recompiles.report import Recompile, Recompiles

__all__ = [
    "CompileLimitError",
    "Recompile",
    "Recompiles",
    "explain_recompiles",
    "history",
    "shown",
]
