"""The files of each session: one interface, and the local folders that implement it.

`Workspaces` has one folder per session, which is its kernel's working directory. Its `LocalFiles`
implement `Files`, as `interpreter.kernel_files` does for kernels on a disk of their own.
"""

from interpreter.workspace import folder
from interpreter.workspace.files import FileInfo, Files, Listing, OpenFile
from interpreter.workspace.local import LocalFiles, Workspaces
from interpreter.workspace.paths import file_url, mime_type_of, parse_path
from interpreter.workspace.snapshots import MAX_SCANNED_FILES, UNKNOWN, Snapshot, changes, unlisted
from interpreter.workspace.uploads import Upload, Uploads

__all__ = [
    "MAX_SCANNED_FILES",
    "UNKNOWN",
    "FileInfo",
    "Files",
    "Listing",
    "LocalFiles",
    "OpenFile",
    "Snapshot",
    "Upload",
    "Uploads",
    "Workspaces",
    "changes",
    "file_url",
    "folder",
    "mime_type_of",
    "parse_path",
    "unlisted",
]
