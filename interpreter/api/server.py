"""The HTTP server, which leaves the service the open files that it needs itself."""

import resource

from tornado.httpserver import HTTPServer
from tornado.iostream import IOStream

MAX_FILES = 20_000  # that the process asks for; each connection costs memory, too


class Server(HTTPServer):
    """Takes connections for half of the files that the process may have open: each may need one more.

    Otherwise, who opens very many connections keeps the runs of all from being recorded.
    """

    def handle_stream(self, stream: IOStream, address: object) -> None:
        """Serve the connection, or end it when there are too many: a new one has the lowest free number."""
        if stream.socket.fileno() >= _allowed_files() // 2:
            stream.close()
            return
        super().handle_stream(stream, address)  # type: ignore[arg-type]


def allow_many_files() -> None:
    """Raise the limit of open files as far as needed: the usual one is for programs of another time."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, MAX_FILES)), hard))


def _allowed_files() -> int:
    return min(MAX_FILES, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
