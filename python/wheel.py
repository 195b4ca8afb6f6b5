"""Writes a wheel of the package weft with the library in it, from what is on this machine: nothing is downloaded.

    make wheel                       # dist/weft-0.1.0-py3-none-manylinux_2_34_x86_64.whl
    pip install --no-index dist/weft-*.whl
"""

import argparse
import base64
import hashlib
import os
import platform
import re
import sys
import zipfile

here = os.path.dirname(os.path.abspath(__file__))


def files(library):
    """What goes in: sources, stubs and the library."""
    yield library, os.path.join("weft", "libweft.so")
    for folder, names, found in os.walk(os.path.join(here, "weft")):
        names[:] = sorted(n for n in names if n != "__pycache__")
        for f in sorted(found):
            if f.endswith((".py", ".pyi", ".typed")):
                path = os.path.join(folder, f)
                yield path, os.path.relpath(path, here)


def own():
    """The version that the sources have."""
    with open(os.path.join(here, "weft", "_version.py")) as f:
        return re.search(r'__version__ = "(.*)"', f.read()).group(1)


MACHINES = {"x86_64": 62, "aarch64": 183}  # as the header of a library names them


def tag(library, machine):
    """The tag of the wheel: the C library that the newest of the symbols needs which weft's library asks for."""
    with open(library, "rb") as f:
        data = f.read()
    if int.from_bytes(data[18:20], "little") != MACHINES.get(machine):
        sys.exit(f"{library} is not a library for {machine}: build it with 'make lib' there, or name another processor with --machine")
    minor = max(int(v) for v in re.findall(rb"GLIBC_2\.(\d+)", data))
    return f"py3-none-manylinux_2_{minor}_{machine}"


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--version", default=own())
    p.add_argument("-o", default="dist", help="folder of the wheel")
    p.add_argument("--library", default=os.path.join(here, "weft", "libweft.so"), help="libweft.so for that processor")
    p.add_argument("--machine", default=platform.machine(), help="x86_64 or aarch64")
    a = p.parse_args()
    version = a.version.lstrip("v").replace("-", ".dev0+", 1).replace("-", ".")
    if not os.path.exists(a.library):
        sys.exit(f"{a.library} is missing: build it with 'make lib'")
    what = tag(a.library, a.machine)
    info = f"weft-{version}.dist-info"
    extra = {
        f"{info}/METADATA": f"Metadata-Version: 2.4\nName: weft\nVersion: {version}\nSummary: Collectives, messages and one-sided memory between processes\n"
                            "License-Expression: Apache-2.0\nLicense-File: LICENSE\nRequires-Python: >=3.9\n",
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nGenerator: weft\nRoot-Is-Purelib: false\nTag: {what}\n",
    }
    os.makedirs(a.o, exist_ok=True)
    name = os.path.join(a.o, f"weft-{version}-{what}.whl")
    record = []
    with zipfile.ZipFile(name, "w", zipfile.ZIP_DEFLATED) as z:

        def add(path, data):
            entry = zipfile.ZipInfo(path, (2020, 1, 1, 0, 0, 0))  # the same input gives the same bytes
            entry.external_attr, entry.compress_type = 0o644 << 16, zipfile.ZIP_DEFLATED
            z.writestr(entry, data)
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            record.append(f"{path},sha256={digest},{len(data)}")

        for path, inside in files(a.library):
            with open(path, "rb") as f:
                data = f.read()
            if inside == os.path.join("weft", "_version.py"):
                data = re.sub(rb'__version__ = ".*"', f'__version__ = "{version}"'.encode(), data)
            add(inside, data)
        with open(os.path.join(here, "..", "LICENSE"), "rb") as f:
            add(f"{info}/licenses/LICENSE", f.read())
        for path, text in extra.items():
            add(path, text.encode())
        record.append(f"{info}/RECORD,,")
        z.writestr(zipfile.ZipInfo(f"{info}/RECORD", (2020, 1, 1, 0, 0, 0)), "\n".join(record) + "\n")
    print(name)


main()
