"""Deleting a folder with all that is in it, however deep, however many, whoever closed it."""

import os
import secrets
import stat

_MAX_OPEN = 32  # folders at a time
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def remove_tree(parent: int, name: str) -> None:
    """Delete ``name`` in the folder open as ``parent``; nothing happens when it is not there.

    Links are deleted, not followed. What lies too deep is moved up, so that depth costs neither
    descriptors nor stack. Raises OSError when something can't be deleted.
    """
    try:
        if not stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode):
            os.unlink(name, dir_fd=parent)
            return
        root = open_closed(parent, name)
    except FileNotFoundError:
        return
    stack = [(root, name, _remove_files(root))]
    try:
        while stack:
            folder, name, inner = stack[-1]
            if not inner:
                os.close(stack.pop()[0])
                os.rmdir(name, dir_fd=stack[-1][0] if stack else parent)
            elif len(stack) < _MAX_OPEN:
                child = open_closed(folder, inner[-1])
                stack.append((child, inner.pop(), _remove_files(child)))
            else:
                os.close(open_closed(folder, inner[-1]))  # one that is closed to us can't be moved
                moved = secrets.token_hex(16)
                os.rename(inner.pop(), moved, src_dir_fd=folder, dst_dir_fd=root)
                stack[0][2].append(moved)
    finally:
        for folder, _, _ in stack:
            os.close(folder)


def _remove_files(folder: int) -> list[str]:
    """Delete all but the folders; their names."""
    folders: set[str] = set()
    found = True
    while found:  # a listing may miss some while entries go
        found = False
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    folders.add(entry.name)
                else:
                    os.unlink(entry.name, dir_fd=folder)
                    found = True
    return list(folders)


def open_closed(parent: int, name: str) -> int:
    """Open a folder, also one that its owner (our own user) has closed."""
    try:
        status = os.stat(name, dir_fd=parent, follow_symlinks=False)
        if status.st_mode & stat.S_IRWXU == stat.S_IRWXU:
            return os.open(name, _FOLDER, dir_fd=parent)
    except PermissionError:
        pass
    if os.chmod in os.supports_follow_symlinks:
        os.chmod(name, 0o700, dir_fd=parent, follow_symlinks=False)
    else:  # Linux: by way of a descriptor that needs no permission
        handle = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
        try:
            os.chmod(f"/proc/self/fd/{handle}", 0o700)
        finally:
            os.close(handle)
    return os.open(name, _FOLDER, dir_fd=parent)
