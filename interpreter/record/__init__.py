"""The record: what was run, by whom, and what came of it, as evidence.

Per session one append-only journal, hash-chained under a key (the truth), and one notebook rendered
from it. `Recorder` is the only writer; `RecordReader` needs no service.
"""

from .index import KernelNote, SessionRecord
from .reader import RecordReader
from .recorder import Recorder
from .verify import Verification

__all__ = ["KernelNote", "RecordReader", "Recorder", "SessionRecord", "Verification"]
