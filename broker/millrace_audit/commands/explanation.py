"""`millrace audit TOPIC --explain HOUR`: prints the reasons for the verdicts on an hour's windows.

For each group of equal windows, the verdict comes first, with each rule that fired, its reason and its next
command. One line for each kind of fact follows. The conditions of rules that did not fire come last.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from millrace.config import parse_time
from millrace.printing import print_json, say, show, text
from millrace_audit import client
from millrace_audit.answer import overall
from millrace_audit.reports.counts import WINDOW_MS
from millrace_audit.show import styled

_MOST_CAUSES = 5
"""Most reasons of a rule that are printed for a window."""
_MOST_FACTS = 10
"""Most facts of a kind that are printed for a window."""
_WINDOW = timedelta(milliseconds=WINDOW_MS)
Answer = Mapping[str, Any]


def explain(url: str, topic: str, time: str, limit: int, *, as_json: bool) -> None:
    """Print the facts and rules of an hour's windows, or of one window if the time has minutes."""
    answers = [client.facts(url, topic, window, limit) for window in windows_of(time)]
    if as_json:
        print_json(answers)
    else:
        print_explanation(answers)


def windows_of(time: str) -> list[datetime]:
    """Return the starts of the windows that a time like 2015-05-17T10 or 2015-05-17T10:20 names."""
    start = parse_time(time, "--explain")
    if re.search(r"\d[T ]\d\d:?\d\d", time.strip()):
        return [start]
    return [start + number * _WINDOW for number in range(6)]


def print_explanation(answers: Sequence[Answer]) -> None:
    first = answers[0]
    head = f"{first['topic']} {_minute(first['start'])} to {_minute(answers[-1]['end'])[-5:]}, in UTC: "
    show(text(head, styled(overall(_verdict(answer)["verdict"] for answer in answers))))
    counted = ", ".join(f"{tier} through {time}" for tier, time in first["counted_through"].items())
    say(f"counted at {first['asked_at']}: {counted or 'nothing yet'}")
    groups: defaultdict[tuple[str, ...], list[Answer]] = defaultdict(list)
    for answer in answers:
        groups[_verdict(answer)["verdict"], *_stored(answer), *_fired(answer)].append(answer)
    for (verdict, *lines), same in groups.items():
        final = ", final" if all(_verdict(answer)["is_final"] for answer in same) else ""
        say()
        show(text(f"{_times(same)}: ", styled(verdict), final))
        for line in lines or ["  no rule fires"]:
            say(line)
        say("  facts:")
        for line in _lines_of(same):
            say(f"    {line}")
    say()
    say("rules that did not fire, by the facts that decide them:")
    for line in _not_fired(answers):
        say(f"  {line}")


def _minute(time: str) -> str:
    return time[:16].replace("T", " ")


def _times(answers: Sequence[Answer]) -> str:
    """Return the spans of time of windows: `10:00 to 10:20, 10:40 to 10:50`."""
    spans: list[list[str]] = []
    for answer in answers:
        if spans and spans[-1][1] == answer["start"]:
            spans[-1][1] = answer["end"]
        else:
            spans.append([answer["start"], answer["end"]])
    return ", ".join(f"{_minute(start)[-5:]} to {_minute(end)[-5:]}" for start, end in spans)


def _fired(answer: Answer) -> Iterator[str]:
    for rule in answer["rules"]:
        causes = rule["causes"]
        if not rule["fired"]:
            continue
        yield f"  {rule['verdict']} by {rule['rule']}: {rule['when']}"
        reasons = dict.fromkeys(cause["reason"] for cause in causes)
        yield from (f"    - {reason}" for reason in [*reasons][:_MOST_CAUSES])
        left_out = answer["more"].get(f"causes of {rule['rule']}", 0)
        if more := len(reasons) - min(len(reasons), _MOST_CAUSES) + left_out:
            yield f"    - and {more} more: --json lists them"
        commands = dict.fromkeys(cause["command"] for cause in causes if cause["command"])
        yield from (f"    next: {command}" for command in [*commands][:_MOST_CAUSES])
        if rule["runbook"]:
            yield f"    runbook: {rule['runbook']}"


def _verdict(answer: Answer) -> Answer:
    """Return the stored verdict if it is final and has no new facts, else the verdict on the facts."""
    stored = answer["stored"]
    is_kept = stored is not None and stored["is_final"] and not stored["has_new_facts"]
    return stored if is_kept else answer


def _stored(answer: Answer) -> Iterator[str]:
    if (stored := answer["stored"]) is not None and stored["note"]:
        yield f"  the stored verdict is {stored['verdict']}: {stored['note']}"
        yield f"  by these facts it is {answer['verdict']}:"


def _lines_of(answers: Sequence[Answer]) -> Iterator[str]:
    """Yield a line for each kind of fact. A line that not all windows share begins with its windows."""
    windows: defaultdict[str, list[Answer]] = defaultdict(list)
    for answer in answers:
        for line in _facts(answer):
            windows[line].append(answer)
    shared = {"true": list[str](), "false": list[str](), "none": list[str]()}
    for line, same in windows.items():
        kind, _, label = line.partition(" ")
        if len(same) < len(answers):
            if kind != "none":
                yield f"{_times(same)}: {line}"
        elif kind in shared:
            shared[kind].append(label)
        else:
            yield line
    yield from (f"{kind}: {', '.join(labels)}" for kind, labels in shared.items() if labels)


def _facts(answer: Answer) -> Iterator[str]:
    """Yield a line for each kind of fact: for flags and empty lists `true`, `false` or `none` and a name."""
    yield from _of_sources(answer)
    for name, value in {**answer["facts"], "differences": answer["differences"]}.items():
        label = name.replace("_", " ")
        if isinstance(value, bool):
            yield f"{'true' if value else 'false'} {label}"
        elif not value:
            yield f"none {label}"
        elif name != "sources":
            yield f"{label}: {_listed(value, answer['more'].get(name, 0))}"


def _of_sources(answer: Answer) -> Iterator[str]:
    """Yield the sums of all sources. Only the JSON lists single sources."""
    sources, more = answer["facts"]["sources"], answer["more"].get("sources", 0)
    tiers = dict.fromkeys(tier for source in sources for tier in source["observed"])
    sums = {
        "acknowledged": sum(source["reported"]["acknowledged"]["sequences"] for source in sources),
        "failed": sum(source["reported"]["failed"]["sequences"] for source in sources),
        **{tier: sum(s["observed"].get(tier, {}).get("sequences", 0) for s in sources) for tier in tiers},
    }
    if sources:
        some = f" (sums of the first {len(sources)})" if more else ""
        counts = ", ".join(f"{name} {count:,}" for name, count in sums.items())
        yield f"sources: {len(sources) + more:,} producer instances{some}: {counts}"


def _listed(value: Any, more: int) -> str:
    if isinstance(value, list):
        words = [_words(each) for each in value[:_MOST_FACTS]]
        more += len(value) - len(words)
        return "; ".join([*words, *([f"{more} more"] if more else [])])
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_words(each)}" for key, each in value.items())
    return str(value)


_BARE = {"tier", "origin", "state", "kind", "name", "text", "why", "reason"}
"""Values that need no name before them."""
_OF_INSTANCE = ("name", "closed_through", "missing_reports", "heard_at", "accepted")


def _words(value: Any) -> str:
    """Return a fact in words: its values with their names, except empty and false values."""
    if not isinstance(value, Mapping):
        return str(value)
    if "instance" in value and "announced" in value:  # a producer: its name says the rest
        value = {name: value[name] for name in _OF_INSTANCE}
    parts = []
    if value.get("origin") and value.get("tier"):  # a leg
        value = {"name": f"{value['origin']} to {value['tier']}", **value, "origin": "", "tier": ""}
    for name, each in value.items():
        label = name.removeprefix("is_").replace("_", " ")
        if each is True:
            parts.append(label)
        elif name in _BARE and each:
            parts.append(str(each))
        elif isinstance(each, Mapping):
            parts.append(_words(each) if name == "instance" else f"{label} {_words(each)}")
        elif each or (each == 0 and each is not False):
            parts.append(f"{label} {each}")
    return " ".join(parts)


def _not_fired(answers: Sequence[Answer]) -> Iterator[str]:
    """Yield the conditions of the rules that fired in no window, grouped by the facts that they read."""
    rules: dict[str, Answer] = {rule["rule"]: rule for answer in answers for rule in answer["rules"]}
    fired = {rule["rule"] for answer in answers for rule in answer["rules"] if rule["fired"]}
    groups: defaultdict[str, list[str]] = defaultdict(list)
    for name, rule in rules.items():
        if name not in fired:
            groups[_labels(rule["facts"])].append(f"{name} ({rule['when'].rstrip('.')})")
    for facts, conditions in groups.items():
        yield f"{facts}: {'; '.join(conditions)}"


def _labels(names: Iterable[str]) -> str:
    return ", ".join(name.replace("_", " ") for name in names)
