"""Kerberos for a web server (SPNEGO), by the system's MIT library through ctypes: no package, no compiler.

The library takes a ticket from the ticket cache (KRB5CCNAME), or gets one by a keytab (KRB5_CLIENT_KTNAME).
Hadoop's servers accept the first token, so there is no second round. No server proves itself by Kerberos: a
false one could pass the ticket on to the true one. Only TLS prevents that (docs/security.md).
"""

from __future__ import annotations

import base64
import ctypes
import os
import re
from collections.abc import Generator
from ctypes import byref
from functools import cache

import httpx

from millrace.errors import MillraceError

_LIBRARY = "libgssapi_krb5.so.2"
_NEGOTIATE = re.compile(r"(?:^|,)\s*negotiate\s*(?:,|$|\s)", re.IGNORECASE)
_FAILED = 0xFFFF0000
_GSS_CODE, _MECHANISM_CODE = 1, 2
_KEYTAB = "KRB5_CLIENT_KTNAME"
_KINIT = f"run kinit, or set {_KEYTAB} to a keytab"
_ADVICE = {
    r"[Cc]lock skew": "the clocks of this machine and of the KDC differ: set them by NTP",
    r"expired": f"the ticket has expired: {_KINIT}",
    r"Server .* not found": "the KDC has no such service: name the NameNode's host in hdfs-site.xml as its"
    " keytab does",
    r"Client .* not found|Preauthentication failed|[Dd]ecrypt|[Kk]ey ?tab": "its principal has another key or"
    " none (`klist -kt` shows principal and key): export the keytab again",
    r"KDC|realm": "check krb5.conf (or KRB5_CONFIG), and that the KDC answers",
    r"": f"there is no ticket: {_KINIT}",
}
"""Regular expression of the library's reason -> advice. The first match counts."""


class NoTicket(MillraceError):
    """Kerberos gives no ticket for a web server."""


class _Oid(ctypes.Structure):
    _fields_ = (("length", ctypes.c_uint32), ("elements", ctypes.c_char_p))


class _Buffer(ctypes.Structure):
    _fields_ = (("length", ctypes.c_size_t), ("value", ctypes.c_void_p))


_SPNEGO = _Oid(6, b"\x2b\x06\x01\x05\x05\x02")
_KRB5 = _Oid(9, b"\x2a\x86\x48\x86\xf7\x12\x01\x02\x02")
_HOST_BASED = _Oid(10, b"\x2a\x86\x48\x86\xf7\x12\x01\x02\x01\x04")


@cache
def _library() -> ctypes.CDLL:
    try:
        return ctypes.CDLL(_LIBRARY)
    except OSError:
        raise NoTicket(
            f"Hadoop asks for Kerberos, and {_LIBRARY} is not installed: install it (Debian:"
            " libgssapi-krb5-2, Red Hat: krb5-libs)"
        ) from None


class ByTicket(httpx.Auth):
    """Proof of identity for a web server that asks for it, and for no other server. Raises NoTicket."""

    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        if asks_for_ticket((yield request)):
            request.headers["Authorization"] = f"Negotiate {negotiate(request.url.host)}"
            yield request


def asks_for_ticket(answer: httpx.Response) -> bool:
    """Return True if Negotiate is one of the schemes that a server asks for."""
    schemes = answer.headers.get("WWW-Authenticate", "")
    return answer.status_code == httpx.codes.UNAUTHORIZED and _NEGOTIATE.search(schemes) is not None


def negotiate(host: str) -> str:
    """Return a secret for `Authorization: Negotiate` to a host's web server. Raise NoTicket."""
    service = f"HTTP@{host}".encode()
    given = _Buffer(len(service), ctypes.cast(ctypes.c_char_p(service), ctypes.c_void_p))
    name, context, token = ctypes.c_void_p(), ctypes.c_void_p(), _Buffer()
    try:
        _call("gss_import_name", byref(given), byref(_HOST_BASED), byref(name))
        target = (None, byref(context), name, byref(_SPNEGO), 0, 0)
        _call("gss_init_sec_context", *target, None, None, None, byref(token), None, None)
        return base64.b64encode(_taken(token)).decode()
    except OSError as error:
        raise _no_ticket(f" for HTTP/{host}", str(error)) from None
    finally:
        _taken(token)  # a call that fails may leave one
        minor = ctypes.c_uint32()
        _library().gss_release_name(byref(minor), byref(name))
        _library().gss_delete_sec_context(byref(minor), byref(context), None)


def log_in() -> str:
    """Return the user of the ticket, which a keytab brings into the ticket cache. Raise NoTicket."""
    try:
        return _principal()
    except OSError as error:
        raise _no_ticket("", str(error)) from None


def _principal() -> str:
    """Return the user of the ticket. Raise OSError without one."""
    name, shown = ctypes.c_void_p(), _Buffer()
    try:
        _call("gss_inquire_cred", None, byref(name), None, None, None)
        _call("gss_display_name", name, byref(shown), None)
        return _taken(shown).decode(errors="replace")
    finally:
        _library().gss_release_name(byref(ctypes.c_uint32()), byref(name))


def _call(function: str, *arguments: object) -> None:
    """Call a function of GSSAPI. Raise OSError with the library's text if it fails."""
    minor = ctypes.c_uint32()
    major = ctypes.c_uint32(getattr(_library(), function)(byref(minor), *arguments)).value
    if major & _FAILED:
        # Kerberos' own reason is the second code; the first only has its class.
        reason = _text(minor.value, _MECHANISM_CODE)
        raise OSError(_text(major, _GSS_CODE) if reason == "Success" else reason)


def _text(code: int, kind: int) -> str:
    minor, more, text = ctypes.c_uint32(), ctypes.c_uint32(), _Buffer()
    _library().gss_display_status(
        byref(minor), ctypes.c_uint32(code), kind, byref(_KRB5), byref(more), byref(text)
    )
    return _taken(text).decode(errors="replace")


def _taken(buffer: _Buffer) -> bytes:
    content = ctypes.string_at(buffer.value, buffer.length) if buffer.value else b""
    _library().gss_release_buffer(byref(ctypes.c_uint32()), byref(buffer))
    return content


def _no_ticket(service: str, reason: str) -> NoTicket:
    try:
        whose = f" of {_principal()}"
    except OSError as error:
        whose, reason = "", str(error) if "SPNEGO" in reason else reason  # SPNEGO itself names no cause
    keytab = os.environ.get(_KEYTAB, "").removeprefix("FILE:")
    advice = next(text for pattern, text in _ADVICE.items() if re.search(pattern, reason))
    if keytab and not os.access(keytab, os.R_OK):
        advice = "this user cannot read the keytab: correct its path or its mode"
    by = f" by the keytab {keytab}" if keytab else ""
    return NoTicket(f"Hadoop asks for a Kerberos ticket{whose}{service}{by} ({reason}): {advice}")
