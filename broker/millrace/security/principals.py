"""Principals from certificates: the subject as text, and the rules that turn it into a principal.

The rules are Kafka's (KIP-371), tried in order. `DEFAULT` is the whole subject. `RULE:pattern/replacement/`
is the replacement for a subject that the pattern matches as a whole; L or U at its end changes the case. A
subject that no rule matches has no principal.

Separators inside a value are written in hex, which RFC 2253 allows and Kafka does not do: a pattern such as
`CN=(.*),OU=brokers` would match `CN=x\\,OU=brokers`, one common name that looks like two names.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from millrace.errors import ConfigError

Subject = Sequence[Sequence[tuple[str, str]]]
"""A subject as `ssl` returns it: relative names, the most general first, each of (attribute, value)s."""
MAX_SUBJECT_CHARACTERS = 2_000
"""Longest subject that is matched; a longer one has no principal. Clients must not decide how long matching
takes."""
_SHORT = {
    "commonName": "CN",
    "organizationalUnitName": "OU",
    "organizationName": "O",
    "localityName": "L",
    "stateOrProvinceName": "ST",
    "streetAddress": "STREET",
    "countryName": "C",
    "domainComponent": "DC",
    "userId": "UID",
}


def distinguished_name(subject: Subject) -> str:
    """Return the subject as RFC 2253 writes it: the most specific name first, separators in
    values escaped.
    """
    names = ("+".join(f"{_SHORT.get(key, key)}={_escaped(value)}" for key, value in name) for name in subject)
    return ",".join(reversed(list(names)))


def _escaped(value: str) -> str:
    return re.sub(r'[,+"\\<>;=\x00-\x1f\x7f]|^[ #]| $', lambda found: f"\\{ord(found[0]):02X}", value)


@dataclass(frozen=True, slots=True)
class PrincipalRule:
    """One rule; `DEFAULT` has the `pattern` None."""

    pattern: re.Pattern[str] | None
    replacement: str = ""
    case: str = ""

    def apply(self, name: str) -> str | None:
        """Return the principal's name, or None when the rule does not match this subject."""
        if self.pattern is None:
            return name
        match = self.pattern.fullmatch(name)
        if match is None:
            return None
        made = match.expand(self.replacement)
        return made.lower() if self.case == "L" else made.upper() if self.case == "U" else made


def parse_rules(texts: Sequence[str]) -> list[PrincipalRule]:
    """Parse the rules. Raise ConfigError, with the rule, when a rule cannot be read."""
    return [_parse(text) for text in texts]


def _parse(text: str) -> PrincipalRule:
    if text == "DEFAULT":
        return PrincipalRule(None)
    # A slash inside a pattern is written \/, as in Kafka.
    match = re.fullmatch(r"RULE:((?:[^/\\]|\\.)*)/((?:[^/\\]|\\.)*)/([LU]?)", text)
    try:
        if match is None:
            raise ValueError("write RULE:pattern/replacement/ or DEFAULT")
        pattern = re.compile(match[1].replace(r"\/", "/"))
        replacement = re.sub(r"\$(\d+)", r"\\g<\1>", match[2].replace(r"\/", "/"))
        re.sub(pattern, replacement, "")  # raises for a missing group
        if any(int(group) > pattern.groups for group in re.findall(r"\\g<(\d+)>", replacement)):
            raise ValueError("its replacement names a group that its pattern does not have")
    except (ValueError, re.error) as error:
        raise ConfigError(f"principal rule {text!r}: {error}") from None
    return PrincipalRule(pattern, replacement, match[3])


def principal(rules: Sequence[PrincipalRule], subject: Subject) -> str | None:
    """Return `User:NAME` by the first rule that matches the subject; None when none does."""
    name = distinguished_name(subject)
    if len(name) > MAX_SUBJECT_CHARACTERS:
        return None
    made = next((made for rule in rules if (made := rule.apply(name)) is not None), None)
    return f"User:{made}" if made else None
