"""Blocks of KV caches kept by "weft kv serve": a client, and the names of blocks.

    from weft.kv import Client, Chain
    chain = Chain("vllm", block=16, seed="0")
    keys = chain.hashes(tokens)
    cache = Client("127.0.0.1:7080", chain=chain.print())
    have = cache.match(keys)                    # how many blocks from the first on are there
    cache.put(keys, blocks, start=have)         # blocks[i] belongs to keys[have + i]
    blocks = cache.get(keys)                    # up to the first that is not there: None from then on

The standard library alone; a client may be used by several threads.
"""

import hashlib
import http.client
import json
import logging
import os
import struct
import threading
import time
import zlib

logger = logging.getLogger("weft.kv")

_MISSING = (1 << 64) - 1


class CacheError(Exception):
    """What the cache, or the way to it, did not like."""


class Client:
    """The cache service at an address. Without token, address and tls: WEFT_TOKEN, WEFT_KV and WEFT_KV_TLS.

    tls is a folder with ca.pem, and with cert.pem and key.pem where a certificate says who the client is: the service is called by HTTPS.

    A cache that cannot be reached, or that does not answer within timeout seconds, is left alone for rest seconds: calls fail at once, so that
    an engine does not wait for it again and again.
    """

    def __init__(self, address=None, token=None, chain="", timeout=30.0, rest=0.0, tls=None):
        self.address = address or os.environ.get("WEFT_KV", "127.0.0.1:7080")
        self.token = os.environ.get("WEFT_TOKEN", "") if token is None else token
        self.chain, self.timeout, self.rest = chain, timeout, rest
        self.tls = _context(os.environ.get("WEFT_KV_TLS", "") if tls is None else tls)
        self._idle, self._lock, self._closed = [], threading.Lock(), False
        self._away, self._why, self._told = 0.0, "", {}

    def match(self, keys, start=0, alone=False):
        """How many of keys[start:] are there, up to the first that is not."""
        return self._json("/v1/match", keys, start, alone)["blocks"]

    def where(self, keys, alone=False):
        """Where the blocks are: memory, disk, store or peer, up to the first that is nowhere."""
        return self._json("/v1/match", keys, 0, alone).get("where") or []

    def which(self, keys):
        """Which of the keys are there, each by itself."""
        if not keys:
            return []
        where = self._post("/v1/match", _head(keys, 0, True, each=True), [], _json).get("where") or []
        if len(where) != len(keys):
            raise CacheError("the cache at %s answers for %d blocks; %d were asked for" % (self.address, len(where), len(keys)))
        return [bool(w) for w in where]

    def get(self, keys, start=0, alone=False):
        """keys[start:] as bytes, None where a block is not there."""
        if not len(keys) - start:
            return []

        def read(response):
            out = []
            self._read_head(response)
            for i in range(start, len(keys)):
                size, crc = struct.unpack("<QI", self._exactly(response, 12))
                if size == _MISSING:
                    out.append(None)
                    continue
                data = self._exactly(response, size)
                if zlib.crc32(data) != crc:
                    raise CacheError("block %d came with a wrong checksum" % i)
                out.append(data)
            response.read()
            return out

        return self._post("/v1/get", _head(keys, start, alone), [], read)

    def put(self, keys, blocks, start=0, alone=False):
        """Stores blocks for keys[start:], and says how many are there now."""
        if len(blocks) != len(keys) - start:
            raise ValueError("%d blocks for %d keys" % (len(blocks), len(keys) - start))
        if not blocks:
            return 0
        frames = []
        for b in blocks:
            b = memoryview(b).cast("B")
            frames += [struct.pack("<QI", len(b), zlib.crc32(b)), b]
        return self._json("/v1/put", keys, start, alone, frames)["blocks"]

    def stat(self):
        """How the cache stands."""
        return self._request("GET", "/v1/stat", None, _json)

    def close(self):
        with self._lock:
            idle, self._idle, self._closed = self._idle, [], True
        for c in idle:
            c.close()

    def resting(self):
        """Whether the cache did not answer lately and is left alone."""
        return time.monotonic() < self._away

    def complain(self, error):
        """Writes to the log what went wrong: the same thing once a minute."""
        text, now = str(error), time.monotonic()
        if now - self._told.get(text, -60.0) >= 60.0:
            if len(self._told) > 100:
                self._told.clear()
            self._told[text] = now
            logger.warning("%s", text)

    def _json(self, path, keys, start, alone, frames=()):
        if not len(keys) - start:
            return {"blocks": 0}
        answer = self._post(path, _head(keys, start, alone), frames, _json)
        if not 0 <= answer.get("blocks", 0) <= len(keys) - start:
            raise CacheError("the cache at %s answers for %s blocks; %d were asked for" % (self.address, answer["blocks"], len(keys) - start))
        return answer

    def _post(self, path, head, frames, read):
        return self._request("POST", path, [struct.pack("<I", len(head)), head, *frames], read)

    def _request(self, method, path, pieces, read):
        """Makes a call and gives what read makes of the answer."""
        if self.resting():
            raise CacheError("the cache at %s is left alone for a while: %s" % (self.address, self._why))
        headers = {}
        if self.token:
            headers["Authorization"] = "Bearer " + self.token
        if self.chain:
            headers["Weft-Kv-Chain"] = self.chain
        if pieces is not None:
            headers["Content-Length"] = str(sum(len(p) for p in pieces))
        while True:
            with self._lock:
                connection = self._idle.pop() if self._idle else None
            used = connection is not None
            if not used:
                connection = http.client.HTTPSConnection(self.address, timeout=self.timeout, context=self.tls) if self.tls else http.client.HTTPConnection(self.address, timeout=self.timeout)
            try:
                try:
                    connection.request(method, path, iter(pieces) if pieces is not None else None, headers)
                except (BrokenPipeError, ConnectionResetError):
                    if used or connection.sock is None:
                        raise
                    # It may have refused the call before it had all of it, and said why.
                response = connection.getresponse()
            except (OSError, http.client.HTTPException) as e:
                connection.close()
                if used and not isinstance(e, TimeoutError):
                    continue  # one that was idle may have been closed: once more, on another
                self._away, self._why = time.monotonic() + self.rest, str(e) or type(e).__name__
                raise CacheError("the cache at %s cannot be reached: %s" % (self.address, self._why)) from e
            try:
                if response.status != 200:
                    text = response.read()
                    try:
                        text = json.loads(text).get("error", text)
                    except ValueError:
                        pass
                    raise CacheError("the cache at %s: %d: %s" % (self.address, response.status, text))
                answer = read(response)
            except (OSError, http.client.HTTPException, ValueError) as e:
                connection.close()
                if isinstance(e, TimeoutError):
                    self._away, self._why = time.monotonic() + self.rest, str(e) or type(e).__name__
                raise CacheError("the cache at %s broke its answer off: %s" % (self.address, e)) from e
            except BaseException:
                connection.close()
                raise
            with self._lock:
                if not self._closed:
                    self._idle.append(connection)
                    return answer
            connection.close()
            return answer

    def _exactly(self, response, n):
        data = response.read(n)
        if len(data) != n:
            raise CacheError("the cache at %s ended its answer after %d of %d bytes" % (self.address, len(data), n))
        return data

    def _read_head(self, response):
        (n,) = struct.unpack("<I", self._exactly(response, 4))
        return json.loads(self._exactly(response, n))


def _context(folder):
    """How HTTPS is spoken by the certificates of a folder; None without one."""
    if not folder:
        return None
    import ssl

    context = ssl.create_default_context(cafile=os.path.join(folder, "ca.pem"))
    if os.path.exists(os.path.join(folder, "cert.pem")):
        context.load_cert_chain(os.path.join(folder, "cert.pem"), os.path.join(folder, "key.pem"))
    return context


def _json(response):
    return json.loads(response.read())


def key_of(name):
    """A block's name as the cache takes it: 32 bytes, 64 hexadecimal digits, or any other name by its hash."""
    if isinstance(name, (bytes, bytearray)):
        return bytes(name).hex() if len(name) == 32 else hashlib.sha256(b"bytes " + bytes(name)).hexdigest()
    if len(name) == 64:
        try:
            return bytes.fromhex(name).hex()
        except ValueError:
            pass
    return hashlib.sha256(b"name " + name.encode()).hexdigest()


def _head(keys, start, alone, **more):
    return json.dumps({"keys": [key_of(k) for k in keys], "from": start, "alone": alone, **more}).encode()


class Chain:
    """Names of blocks as serving engines compute them: "vllm" (sha256_cbor, with PYTHONHASHSEED's text as seed) or "sglang"."""

    def __init__(self, convention, block, seed=""):
        if convention not in ("vllm", "sglang") or block < 1 or (convention == "vllm") != bool(seed):
            raise ValueError("chain %r of %r tokens, seed %r; want vllm with a seed, or sglang without" % (convention, block, seed))
        self.convention, self.block = convention, block
        self.root = hashlib.sha256(_cbor(seed)).digest() if convention == "vllm" else bytes(32)

    def hashes(self, tokens, lora=None, salt=None):
        """The names of the whole blocks of tokens."""
        if self.convention == "sglang" and (lora or salt):
            raise ValueError("names of sglang hold tokens alone")
        out, parent = [], self.root
        for at in range(0, len(tokens) - self.block + 1, self.block):
            run = [int(t) for t in tokens[at : at + self.block]]
            if self.convention == "sglang":
                data = (parent if at else b"") + b"".join(t.to_bytes(4, "little") for t in run)
            else:
                extra = ([lora] if lora else []) + ([salt] if salt and not at else [])
                data = _cbor([parent, run, extra or None])
            parent = hashlib.sha256(data).digest()
            out.append(parent)
        return out

    def print(self):
        """What tells chains apart; it does not tell the seed."""
        text = "weft kv chain 1 %s %d %s" % (self.convention, self.block, self.root.hex())
        return "%s/%d/%s" % (self.convention, self.block, hashlib.sha256(text.encode()).digest()[:8].hex())


def _cbor(x):
    """RFC 8949 in its shortest form, as far as names need it."""
    if x is None:
        return b"\xf6"
    if isinstance(x, int):
        return _cbor_head(0, x) if x >= 0 else _cbor_head(1, -x - 1)
    if isinstance(x, bytes):
        return _cbor_head(2, len(x)) + x
    if isinstance(x, str):
        data = x.encode()
        return _cbor_head(3, len(data)) + data
    return _cbor_head(4, len(x)) + b"".join(_cbor(v) for v in x)


def _cbor_head(major, n):
    if n < 24:
        return bytes([major << 5 | n])
    for code, size in (24, 1), (25, 2), (26, 4), (27, 8):
        if n < 1 << 8 * size:
            return bytes([major << 5 | code]) + n.to_bytes(size, "big")
    raise ValueError(n)
