"""MirrorMaker 2's records about its copies: each is understood whole, or refused in one line."""

from __future__ import annotations

import struct

import pytest

from millrace.client.mirrormaker import parse_sync
from millrace.errors import MillraceError

KEY = struct.pack(">h", 6) + b"Clicks" + struct.pack(">i", 3)
VALUE = struct.pack(">qq", 70, 50)


def test_a_sync_names_the_origin_s_partition_and_both_offsets() -> None:
    assert parse_sync(KEY, VALUE, "syncs") == (("Clicks", 3), 70, 50)


@pytest.mark.parametrize("length", range(len(KEY)))
def test_a_key_that_is_cut_anywhere_is_refused(length: int) -> None:
    with pytest.raises(MillraceError, match="no offset sync"):
        parse_sync(KEY[:length], VALUE, "syncs")


@pytest.mark.parametrize("length", range(len(VALUE)))
def test_a_value_that_is_cut_anywhere_is_refused(length: int) -> None:
    with pytest.raises(MillraceError, match="no offset sync"):
        parse_sync(KEY, VALUE[:length], "syncs")


def test_a_key_with_a_negative_length_or_no_text_is_refused() -> None:
    for key in (struct.pack(">h", -1) + KEY[2:], struct.pack(">h", 2) + b"\xff\xff" + KEY[-4:]):
        with pytest.raises(MillraceError, match="no offset sync"):
            parse_sync(key, VALUE, "syncs")
