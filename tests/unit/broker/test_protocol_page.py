"""docs/protocol.md lists what a broker tells its clients, no more and no less."""

from __future__ import annotations

import re

from millrace.handlers import all_apis
from tests.support import REPOSITORY

ROW = re.compile(r"^\| (\w+) \| (\d+) \| (\d+) to (\d+) \|", re.MULTILINE)


def test_the_table_of_versions_is_what_brokers_advertise() -> None:
    text = (REPOSITORY / "docs" / "protocol.md").read_text()
    listed = {int(key): (int(low), int(high)) for _, key, low, high in ROW.findall(text)}
    assert listed == {api.key: (api.versions[0], api.versions[-1]) for api in all_apis() if api.versions}
