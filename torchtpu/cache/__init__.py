"""The compile cache: programs that this process has compiled, and the counts a user can read."""

from torchtpu.cache.memory import CacheStats, ProgramCache

__all__ = ["CacheStats", "ProgramCache"]
