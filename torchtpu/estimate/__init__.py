"""Estimates: run a script on abstract buffers, find its steps, and price them for a chip."""

from torchtpu.estimate.run import ScriptError, estimate_script

__all__ = ["ScriptError", "estimate_script"]
