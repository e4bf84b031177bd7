"""A server that does to each request what the next line of a script says: answers, breaks off, is slow, or is away."""

import json
import socket
import struct
import threading
import time
from contextlib import contextmanager, suppress

OK = {"src": "u", "known": True, "scores": [], "as_of": {
    "version": "rule", "trained_until": None, "last_edge": 0, "newest_event": 0, "time": 1}}


def answer(status=200, body=OK, **headers):
    """An answer whole: a step of a script."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = {"content-type": "application/json", "content-length": str(len(content))} | {k.replace("_", "-"): v for k, v in headers.items()}
    head = f"HTTP/1.1 {status} Word\r\n" + "".join(f"{k}: {v}\r\n" for k, v in lines.items()) + "\r\n"
    return [head.encode() + content]


def problem(status, detail="why", kind="about:blank", **headers):
    return answer(status, {"type": kind, "title": "Word", "status": status, "detail": detail}, **headers)


RESET = "reset"
"""Break the connection off once the request is read, by a TCP reset."""
CLOSE = "close"
"""The same by closing it."""


class Scripted:
    """The server. requests: (method, path, headers, body) of all that came."""

    def __init__(self, *steps, port=0):
        self.steps, self.requests = list(steps), []
        self._listening = socket.create_server(("127.0.0.1", port))
        self.port = self._listening.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._links = []
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self):
        while True:
            try:
                link, _ = self._listening.accept()
            except OSError:
                return
            self._links.append(link)
            thread = threading.Thread(target=self._speak, args=(link,))
            thread.start()
            self._links.append(thread)

    def _speak(self, link):
        try:
            with link, link.makefile("rb") as reading:
                while line := reading.readline():
                    method, path, _ = line.decode().split(" ")
                    headers = {}
                    while (head := reading.readline().decode().strip()):
                        name, _, value = head.partition(":")
                        headers[name.lower()] = value.strip()
                    self.requests.append((method, path, headers, reading.read(int(headers.get("content-length", 0)))))
                    step = self.steps.pop(0) if self.steps else answer(500)
                    if step == RESET:
                        link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                        return
                    if step == CLOSE:
                        return
                    for part in step:
                        if isinstance(part, bytes):
                            link.sendall(part)
                        elif part is None:
                            return
                        else:
                            time.sleep(part)
        except OSError:
            pass  # the client gave up

    def close(self):
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._thread.join()
        for one in self._links:
            if isinstance(one, threading.Thread):
                one.join()
            else:
                with suppress(OSError):  # it is closed
                    one.shutdown(socket.SHUT_RDWR)


@contextmanager
def scripted(*steps):
    server = Scripted(*steps)
    try:
        yield server
    finally:
        server.close()
