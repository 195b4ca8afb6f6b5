"""How agents of weft.nixl give one another their metadata over a socket.

A connection carries one call. The listener speaks first, and both prove that they know the token of the cluster:

    listener   {"nonce": N}
    caller     {"body": TEXT, "mac": of N and TEXT}         TEXT is JSON: do (send, fetch, invalidate), name, data
    listener   {"body": TEXT, "mac": of N, "answer" and TEXT}   with data for fetch, error for what failed

Each is JSON behind four bytes of length. Without a token anybody could call, so the listener takes calls of its own host only.
"""

import base64
import hashlib
import hmac
import json
import os
import socket
import struct
import threading
import time

LIMIT = 64 << 20
PATIENCE = 5.0


def _send(conn, what):
    data = json.dumps(what).encode()
    conn.sendall(struct.pack(">I", len(data)) + data)


def _receive(conn):
    def exactly(n):
        parts = []
        while n:
            part = conn.recv(min(n, 1 << 20))
            if not part:
                raise ConnectionError("the connection ended in the middle of a message")
            parts.append(part)
            n -= len(part)
        return b"".join(parts)

    (n,) = struct.unpack(">I", exactly(4))
    if n > LIMIT:
        raise ValueError("a message of %d bytes; the most is %d" % (n, LIMIT))
    what = json.loads(exactly(n))
    if not isinstance(what, dict):
        raise ValueError("a message that is no object")
    return what


def _mac(token, *parts):
    return hmac.new(token.encode(), "\n".join(parts).encode(), hashlib.sha256).hexdigest()


def _opened(message, token, *before):
    """The body of a message, if its sender knows the token."""
    body, mac = message.get("body"), message.get("mac")
    if not isinstance(body, str) or not isinstance(mac, str):
        raise ValueError("a message without body or mac")
    if not hmac.compare_digest(mac.encode(), _mac(token, *before, body).encode()):
        raise PermissionError("the other side has another token; set the same WEFT_TOKEN on both")
    return json.loads(body)


class Listener:
    """Takes calls at a port. answer(do, name, data) gives bytes or None, and raises what is told to the caller."""

    def __init__(self, port, token, answer):
        self.token, self.answer = token, answer
        self.socket = socket.create_server(("" if token else "127.0.0.1", port), reuse_port=False)
        self.port = self.socket.getsockname()[1]
        threading.Thread(target=self._run, name="weft.nixl listener", daemon=True).start()

    def _run(self):
        while True:
            try:
                conn, _ = self.socket.accept()
            except OSError:
                return  # closed
            threading.Thread(target=self._serve, args=(conn,), daemon=True).start()

    def _serve(self, conn):
        with conn:
            try:
                conn.settimeout(PATIENCE)
                nonce = os.urandom(16).hex()
                _send(conn, {"nonce": nonce})
                what = _receive(conn)
                try:
                    call = _opened(what, self.token, nonce)
                    data = self.answer(str(call["do"]), str(call["name"]), base64.b64decode(call.get("data") or ""))
                    body = {"data": base64.b64encode(data or b"").decode()}
                except Exception as e:  # the caller is told; the listener goes on
                    body = {"error": "%s" % (e or type(e).__name__)}
                text = json.dumps(body)
                _send(conn, {"body": text, "mac": _mac(self.token, nonce, "answer", text)})
            except (OSError, ValueError):
                pass  # whoever called is gone or speaks something else

    def close(self):
        try:
            self.socket.shutdown(socket.SHUT_RDWR)  # wakes accept
        except OSError:
            pass
        self.socket.close()


def call(address, port, token, do, name, data=b"", wait=True):
    """Makes one call. With wait, a listener that is not there yet is waited for, PATIENCE seconds."""
    end = time.monotonic() + (PATIENCE if wait else 0)
    while True:
        try:
            conn = socket.create_connection((address, port), timeout=PATIENCE)
            break
        except ConnectionRefusedError:
            if time.monotonic() > end:
                raise
            time.sleep(0.02)
    with conn:
        nonce = str(_receive(conn).get("nonce"))
        text = json.dumps({"do": do, "name": name, "data": base64.b64encode(data).decode()})
        _send(conn, {"body": text, "mac": _mac(token, nonce, text)})
        answer = _opened(_receive(conn), token, nonce, "answer")
    if answer.get("error"):
        raise ValueError(answer["error"])
    return base64.b64decode(answer["data"])
