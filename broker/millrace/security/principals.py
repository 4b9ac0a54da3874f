"""Who a client is by its certificate: the subject as text, and the rules that make a principal of it.

The rules are Kafka's (KIP-371), tried in order: `DEFAULT` is the whole subject, `RULE:pattern/replacement/`
what a pattern makes of a subject that it matches from end to end, with L or U behind it in lower or upper
case. A subject that no rule takes belongs to nobody.

What could separate names is written in hex inside a value, which RFC 2253 allows and Kafka does not do: a
pattern such as `CN=(.*),OU=brokers` would take `CN=x\\,OU=brokers`, a common name that only looks like two.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from millrace.errors import ConfigError

Subject = Sequence[Sequence[tuple[str, str]]]
"""As `ssl` tells it: relative names, the first the most general, each of (attribute, value)s."""
MAX_SUBJECT_CHARACTERS = 2_000
"""Who has a longer subject is nobody: what a pattern costs must not be for clients to say."""
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
    """The subject as RFC 2253 writes it: the most special name first, separators in values escaped."""
    names = ("+".join(f"{_SHORT.get(key, key)}={_escaped(value)}" for key, value in name) for name in subject)
    return ",".join(reversed(list(names)))


def _escaped(value: str) -> str:
    return re.sub(r'[,+"\\<>;=\x00-\x1f\x7f]|^[ #]| $', lambda found: f"\\{ord(found[0]):02X}", value)


@dataclass(frozen=True, slots=True)
class PrincipalRule:
    """One rule; `pattern` None is `DEFAULT`."""

    pattern: re.Pattern[str] | None
    replacement: str = ""
    case: str = ""

    def apply(self, name: str) -> str | None:
        """The principal's name, or None when the rule is not about this subject."""
        if self.pattern is None:
            return name
        match = self.pattern.fullmatch(name)
        if match is None:
            return None
        made = match.expand(self.replacement)
        return made.lower() if self.case == "L" else made.upper() if self.case == "U" else made


def parse_rules(texts: Sequence[str]) -> list[PrincipalRule]:
    """The rules; ConfigError names the one that cannot be read."""
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
        re.sub(pattern, replacement, "")  # a group that is not there shows itself
        if any(int(group) > pattern.groups for group in re.findall(r"\\g<(\d+)>", replacement)):
            raise ValueError("its replacement names a group that its pattern does not have")
    except (ValueError, re.error) as error:
        raise ConfigError(f"principal rule {text!r}: {error}") from None
    return PrincipalRule(pattern, replacement, match[3])


def principal(rules: Sequence[PrincipalRule], subject: Subject) -> str | None:
    """`User:NAME` by the first rule that takes the subject; None when none does."""
    name = distinguished_name(subject)
    if len(name) > MAX_SUBJECT_CHARACTERS:
        return None
    made = next((made for rule in rules if (made := rule.apply(name)) is not None), None)
    return f"User:{made}" if made else None
