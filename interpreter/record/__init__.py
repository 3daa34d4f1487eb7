"""The record: what was run, by whom, and what came of it, as evidence.

Per session one append-only journal, hash-chained under a key (the truth), and one notebook rendered
from it. `Recorder` is the only writer; `RecordReader` needs no service.
"""

from interpreter.record.index import KernelNote, SessionRecord
from interpreter.record.reader import RecordReader
from interpreter.record.recorder import Recorder
from interpreter.record.verify import Verification

__all__ = ["KernelNote", "RecordReader", "Recorder", "SessionRecord", "Verification"]
