"""URLs that may hold a password: their form in errors and logs, and their parts for HTTP clients."""

from __future__ import annotations

from urllib.parse import quote, unquote, urlsplit

from millrace.errors import ConfigError


def without_secret(url: str) -> str:
    """Return the URL with `***` for its user, its password and its query; any other text is treated in the
    same way.

    Everything before the last `@` is hidden, because a wrongly written password may hold any character.
    """
    scheme, separator, rest = url.partition("://") if "://" in url else ("", "", url)
    _, at, host = rest.rpartition("@")
    host, question_mark, _ = host.partition("?")
    return f"{scheme}{separator}{'***@' if at else ''}{host}{'?***' if question_mark else ''}"


def address_and_auth(url: str) -> tuple[str, tuple[str, str] | None]:
    """Return an HTTP URL without its user and password, and the two as a pair (None if the URL has none).

    HTTP clients log the URLs of their requests, so a URL given to them must not hold the password. Raise
    ConfigError for a text that is no HTTP URL.
    """
    try:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError
        parts.hostname.encode("ascii")
        parts.hostname.encode("idna")  # HTTP clients cannot look up a name that fails here
        _ = parts.port
    except ValueError:
        raise ConfigError(
            f"{without_secret(url)!r} is not a URL: write http://HOST:PORT or http://USER:PASSWORD@HOST:PORT,"
            " special characters as %XX"
        ) from None
    address = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
    if parts.username is None:
        return address, None
    return address, (unquote(parts.username), unquote(parts.password or ""))


def with_password(url: str, password: str) -> str:
    """Return the URL with a password for the user that it names.

    Raise ConfigError when it names no user, or has a password already.
    """
    address, auth = address_and_auth(url)
    if auth is None or not auth[0] or auth[1]:
        raise ConfigError(
            f"{without_secret(url)!r} names no user for the token: write https://NAME@HOST:PORT"
        )
    scheme, _, rest = address.partition("://")
    return f"{scheme}://{quote(auth[0], safe='')}:{quote(password, safe='')}@{rest}"
