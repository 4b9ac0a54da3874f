"""Client for the web servers of a Hadoop cluster. Follows no redirects: no other host may get a token."""

from __future__ import annotations

import logging
import re
import ssl
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Any

import httpx

from millrace.errors import ConfigError
from millrace_warehouse.storage.hadoop_settings import CA_VARIABLE

_SECRET = re.compile(r"delegation=|token=|hadoop\.auth=")


def _has_no_secret(record: logging.LogRecord) -> bool:
    return _SECRET.search(record.getMessage()) is None


# These write URLs (at INFO) and cookies (at DEBUG).
for _library in ("httpx", "httpcore.http11"):
    logging.getLogger(_library).addFilter(_has_no_secret)


def hadoop_client(ca_file: str, **options: Any) -> httpx.Client:
    """Return a client that trusts the authorities of a PEM file, by default those of the system.

    Raise ConfigError without that file. Hosts inside the cluster: no proxy from the environment applies.
    """
    try:
        trusted = ssl.create_default_context(cafile=ca_file or None)
    except OSError as error:
        raise ConfigError(f"{CA_VARIABLE} names {ca_file}, which is no PEM file here ({error})") from None
    no_cookies = CookieJar(DefaultCookiePolicy(allowed_domains=()))  # tickets and tokens are enough
    return httpx.Client(trust_env=False, verify=trusted, cookies=no_cookies, **options)
