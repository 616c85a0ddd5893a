"""The compile cache: compiled programs in memory, on the host and between hosts, and its counts."""

from torchtpu.cache.encoding import Unencodable
from torchtpu.cache.key import Entries, Key, hashed
from torchtpu.cache.memory import CacheStats, ProgramCache
from torchtpu.cache.tiers import Codec, Tiers, configured

__all__ = [
    "CacheStats",
    "Codec",
    "Entries",
    "Key",
    "ProgramCache",
    "Tiers",
    "Unencodable",
    "configured",
    "hashed",
]
