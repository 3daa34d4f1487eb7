"""File descriptors 1 and 2 of a kernel: a pipe of its own for each run. Used by `interpreter_streams`.

What a run has started keeps that run's pipe when a later one executes, and so its output is never taken for that of a
stranger. ipykernel has one pipe, and gives what comes from it to whichever run executes.

What programs wrote comes before what the code shows next. ipykernel reads in a thread of its own, which may come
late. Here what is there is read when a program has ended, and at each flush. Chunks do not cut characters in two.
"""

import codecs
import contextlib
import functools
import os
import select
import subprocess
import threading

PIPE_BYTES = 64 * 1024
"""What a pipe holds: more than that is not waited for."""
MAX_UNSENT_BYTES = 16 * 1024 * 1024
"""Of what programs have written; then they wait for the next time that something is sent (0.2 seconds)."""
MAX_PIPES = 16
"""Of one stream, as far as processes of earlier runs hold them open; then runs share the latest one."""


class Pipe:
    """The read end of a pipe, and the run that it speaks for (the header of its request)."""

    def __init__(self, read, header):
        self.read = read
        self.header = header
        self.decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self.number = os.fstat(read).st_ino


class RunPipes:
    """The file descriptor of one stream: a pipe for each run, read by one thread."""

    def __init__(self, stream):
        stop_watching(stream)
        self.stream = stream
        self._target = stream._original_stdstream_fd
        self._owner = os.getpid()
        self._reading = threading.RLock()
        self._epoll = select.epoll()
        self._pipes = {}  # read end → Pipe
        self._unsent = 0  # bytes since something was sent
        self._sending = False
        self.waits = True
        """Whether each flush waits until all is sent that was shown before: that of code may be followed by a crash."""
        self._sent = threading.Event()
        self._send_all = stream._flush
        stream._flush = self._send
        self._current = self._replace(stream.parent_header)
        self._flush = stream.flush
        stream.flush = self.flush
        stream.fileno = self.fileno
        stream._should_watch = True
        stream.watch_fd_thread = threading.Thread(target=self._watch, name="run pipes", daemon=True)
        stream.watch_fd_thread.start()

    def fileno(self):
        """For programs that get the stream as their output; ipykernel's own copy leads nowhere."""
        return self._target

    def begin(self):
        """A new run begins, the one that the stream knows as its parent."""
        if os.getpid() != self._owner:  # a fork has no thread that reads
            return
        header = self.stream.parent_header
        with self._reading, contextlib.suppress(OSError):  # out of file descriptors: the pipe is shared
            if self._is_in_place():
                if len(self._pipes) < MAX_PIPES:
                    self._current = self._replace(header)
                self._current.header = header

    def flush(self):
        """What programs have written, then what the stream holds.

        ipykernel itself flushes six times in each run, and would wait for its output thread each time, whatever there
        is to send.
        """
        self.read()
        if self.waits or os.getpid() != self._owner or not self._is_sent():
            self._flush()

    def flush_and_wait(self):
        """The same, and all that was shown before is sent, too."""
        self.read()
        self._flush()

    def _is_sent(self):
        with self.stream._buffer_lock:
            if any(buffer.tell() for buffer in self.stream._buffers.values()):
                return False
        return not self._sending

    def read(self):
        """Takes what programs of this run have written."""
        if os.getpid() == self._owner:
            with self._reading:
                self._take(self._current)

    def open_for(self, header):
        """The write end of a new pipe for a run; None when the present one is right, or there are too many."""
        if os.getpid() != self._owner or header.get("msg_id") == self._current.header.get("msg_id"):
            return None
        with self._reading, contextlib.suppress(OSError):
            if len(self._pipes) < MAX_PIPES:
                read, write = os.pipe()
                self._add(read, header)
                return write
        return None

    def is_behind(self):
        """Whether the calling thread or task is of an earlier run than the one whose pipe is in place."""
        if os.getpid() != self._owner:
            return False
        own = self.stream.parent_header.get("msg_id")
        with self._reading, contextlib.suppress(OSError):
            return own != self._current.header.get("msg_id") and self._is_in_place()
        return False

    def _is_in_place(self):
        """Whether the descriptor is one of our pipes, or was closed: code may have put a file of its own there."""
        try:
            number = os.fstat(self._target).st_ino
        except OSError:
            null = os.open(os.devnull, os.O_WRONLY)  # else the next pipe could get the number
            if null != self._target:
                os.dup2(null, self._target)
                os.close(null)
            return True
        return any(pipe.number == number for pipe in self._pipes.values())

    def _replace(self, header):
        """Puts a new pipe in place; the old one stays as long as something else holds it."""
        read, write = os.pipe()
        old = getattr(self, "_current", None)
        if old is not None and old.read in self._pipes:
            self._epoll.unregister(old.read)  # the end of a pipe that nobody holds shall wake nobody
        os.dup2(write, self._target)
        os.close(write)
        new = self._add(read, header)
        if old is not None and old.read in self._pipes and self._take(old):
            self._epoll.register(old.read, select.EPOLLIN)
        return new

    def _add(self, read, header):
        os.set_blocking(read, False)
        pipe = self._pipes[read] = Pipe(read, header)
        self._epoll.register(read, select.EPOLLIN)
        return pipe

    def _take(self, pipe):
        """Reads what is there; False when the pipe is at its end, or was."""
        if self._pipes.get(pipe.read) is not pipe or not self.stream._should_watch:
            return False
        try:
            data = os.read(pipe.read, PIPE_BYTES)
        except BlockingIOError:
            return True
        self._unsent += len(data)
        if self._unsent > MAX_UNSENT_BYTES:
            self._sent.clear()  # before the write, which makes that something will be sent
        if text := pipe.decoder.decode(data, final=not data):
            self._write(text, pipe.header)
        if not data:
            del self._pipes[pipe.read]
            with contextlib.suppress(OSError):  # a fork may hold it too: closing does not end the watch then
                self._epoll.unregister(pipe.read)
            os.close(pipe.read)
        return bool(data)

    def _write(self, text, header):
        token = self.stream._parent_header.set(header)
        try:
            self.stream.write(text)
        finally:
            self.stream._parent_header.reset(token)

    def _watch(self):
        while self.stream._should_watch:
            for read, _ in self._epoll.poll():
                with self._reading:
                    if read in self._pipes:
                        self._take(self._pipes[read])
            if self._unsent > MAX_UNSENT_BYTES:
                self._sent.wait()

    def _send(self):
        """In ipykernel's output thread: sends what was written."""
        self._sending = True
        try:
            self._send_all()
        finally:
            self._sending = False
        self._unsent = 0
        self._sent.set()


def stop_watching(stream):
    """Ends ipykernel's reader, as the stream's `close` does."""
    stream._should_watch = False
    os.write(stream._original_stdstream_fd, b"\0")
    stream.watch_fd_thread.join()


def give_processes_their_pipe(stdout, stderr):
    """What a thread or task of an earlier run starts gets that run's pipe; all else inherits the present one."""
    get_handles = getattr(subprocess.Popen, "_get_handles", None)
    close_handles = getattr(subprocess.Popen, "_close_pipe_fds", None)
    if get_handles is None or close_handles is None:
        return

    def get_handles_of_run(popen, stdin, out, err):
        popen._of_run = handles = [None, None]
        for index, (asked, pipes) in enumerate(((out, stdout), (err, stderr))):
            if asked is None or asked is pipes.stream:
                handles[index] = pipes.open_for(pipes.stream.parent_header)
        out, err = (asked if own is None else own for asked, own in zip((out, err), handles, strict=True))
        return get_handles(popen, stdin, out, err)

    def close_handles_of_run(popen, *args):
        close_handles(popen, *args)
        for handle in popen.__dict__.pop("_of_run", ()):
            if handle is not None:
                os.close(handle)

    subprocess.Popen._get_handles = get_handles_of_run
    subprocess.Popen._close_pipe_fds = close_handles_of_run


def read_after_writes(all_pipes):
    """What a program wrote is read when the code sees it end, as the code may print at once."""

    def read():
        for pipes in all_pipes:
            pipes.read()

    def reading(function):
        @functools.wraps(function)
        def call_and_read(*args, **kwargs):
            result = function(*args, **kwargs)
            read()
            return result

        return call_and_read

    for owner, names in (
        (os, ("system", "wait", "waitpid", "wait3", "wait4", "waitid")),
        (subprocess.Popen, ("_handle_exitstatus",)),
    ):
        for name in names:
            if hasattr(owner, name):
                setattr(owner, name, reading(getattr(owner, name)))
    write = os.write

    @functools.wraps(write)
    def write_and_read(descriptor, data, /):
        for pipes in all_pipes:
            if descriptor == pipes.fileno() and pipes.is_behind():
                pipes.stream.write(bytes(data).decode(errors="replace"))
                return memoryview(data).nbytes
        count = write(descriptor, data)
        if descriptor in (1, 2):
            read()
        return count

    os.write = write_and_read
    system = os.system

    @functools.wraps(system)
    def system_of_run(command):
        if not any(pipes.is_behind() for pipes in all_pipes):
            return system(command)
        code = subprocess.Popen(command, shell=True).wait()  # noqa: S602  # which has the pipe of its run
        return -code if code < 0 else code << 8

    os.system = system_of_run
