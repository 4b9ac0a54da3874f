"""Delegation tokens of HDFS in the file that YARN gives to each container, as WebHDFS takes them.

file := "HDTS", version 0, n, n times (alias, token), n, n times (alias, secret key)
token := identifier, password, kind, service       each part a length and bytes; numbers are Hadoop's VLongs
"""

from __future__ import annotations

import base64
import io
import os
import socket
from contextlib import suppress
from pathlib import Path

from millrace.errors import MillraceError
from millrace_warehouse.storage.hadoop_settings import with_port

FILE_VARIABLE = "HADOOP_TOKEN_FILE_LOCATION"
_KIND = b"HDFS_DELEGATION_TOKEN"


def token_of_spark(authority: str) -> str:
    """Return the token for `hdfs://<authority>` that Spark has got on YARN, or "" outside of YARN."""
    path = os.environ.get(FILE_VARIABLE)
    if not path:
        return ""
    try:
        tokens = _read(Path(path).read_bytes())
    except (OSError, EOFError, ValueError) as error:
        raise MillraceError(
            f"{FILE_VARIABLE} names {path}, which cannot be read as Hadoop's token file ({error}): correct or"
            " unset it"
        ) from None
    host, _, port = with_port(authority).partition(":")
    names = [f"ha-hdfs:{authority}", f"{host}:{port}"]
    with suppress(OSError):  # by default Hadoop names a NameNode by its address, but a nameservice has none
        names.append(f"{socket.gethostbyname(host)}:{port}")
    return next((tokens[name] for name in names if name in tokens), "")


def _read(content: bytes) -> dict[str, str]:
    """Return the tokens by service. Raise EOFError or ValueError unless the file is a whole version 0."""
    file, tokens = io.BytesIO(content), dict[str, str]()
    if file.read(5) != b"HDTS\x00":
        raise ValueError("it does not begin with HDTS and version 0")
    for _ in range(_number(file)):
        _part(file)  # the alias
        start = file.tell()
        _identifier, _password, kind, service = (_part(file) for _ in range(4))
        if kind == _KIND:
            token = base64.urlsafe_b64encode(content[start : file.tell()])
            tokens[service.decode(errors="replace")] = token.rstrip(b"=").decode()
    for _ in range(2 * _number(file)):  # secret keys, each after an alias
        _part(file)
    return tokens


def _part(file: io.BytesIO) -> bytes:
    return _bytes(file, _number(file))


def _number(file: io.BytesIO) -> int:
    first = _bytes(file, 1)[0]
    if 128 <= first < 136 or first > 143:
        raise ValueError("a length is negative")
    return first if first < 128 else int.from_bytes(_bytes(file, 144 - first))


def _bytes(file: io.BytesIO, length: int) -> bytes:
    if length > len(file.getbuffer()) - file.tell():
        raise EOFError("it is cut off")
    return file.read(length)
