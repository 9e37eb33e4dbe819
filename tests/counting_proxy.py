"""A TCP proxy that counts, to see what really goes over a wire."""

import contextlib
import socket
import threading


class Proxy:
    """Passes connections on and counts bytes; ends with its context.

    Attributes:
        address: where it listens.
        up: bytes from those who connect to the target.
        down: bytes from the target to them.
    """

    def __init__(self, target: str, host: str = "127.0.0.1") -> None:
        self._target = (target.rpartition(":")[0], int(target.rpartition(":")[2]))
        self._server = socket.create_server((host, 0))
        self.address = f"{host}:{self._server.getsockname()[1]}"
        self.up = self.down = 0
        self._lock = threading.Lock()

    def __enter__(self) -> "Proxy":
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        # Wakes the thread that waits in accept, which closing would not.
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._server.accept()
                try:
                    far = socket.create_connection(self._target)
                except OSError:
                    near.close()
                    continue
                threading.Thread(target=self._serve, args=(near, far), daemon=True).start()

    def _serve(self, near: socket.socket, far: socket.socket) -> None:
        back = threading.Thread(target=self._pass, args=(far, near, "down"), daemon=True)
        back.start()
        self._pass(near, far, "up")
        back.join()
        near.close()
        far.close()

    def _pass(self, source: socket.socket, sink: socket.socket, name: str) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                with self._lock:
                    setattr(self, name, getattr(self, name) + len(data))
                sink.sendall(data)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
