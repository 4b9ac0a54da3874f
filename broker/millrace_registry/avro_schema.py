"""An Avro schema's text: read strictly, with names resolved, and written in one canonical form.

Two texts with the same meaning (white space, key order, ways to write a name) become the same canonical text;
documentation, defaults, aliases, logical types and other attributes stay in it. Everything that the Avro
specification forbids is refused. Three flaws can be allowed, because data with these flaws exists: a default
that does not fit its field, a union of nothing (old libraries accept both), and a name longer than MAX_NAME.
Ids, subjects and compatibility are handled elsewhere.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, TypeAlias

from millrace.service.json_values import MOST_VALUES, has_too_many_values
from millrace_registry.errors import InvalidSchema, UnknownType

Json: TypeAlias = Any
"""A JSON value. The trees in this module are JSON values with full names, and with simple types as bare
strings."""

PRIMITIVES = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})
NAMED = frozenset({"record", "error", "enum", "fixed"})
RECORDS = ("record", "error")

_PART = {"array": "items", "map": "values"}
"""Key of the element type of an array or a map."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_MAX_DEPTH = 64
"""Deepest nesting that is accepted, because the functions here and every client's parser recurse."""
MAX_NAME = 1000
"""Most characters of a field's name, of a type's name with its namespace, and of their aliases."""
_MAX_NAMES = 32 << 20
"""Most characters of a schema's full names and paths to its types, which repeat their record's name."""
_MAX_STEPS = 1_000_000
"""Most steps to check a schema's defaults, half a second: 1 for an item or 64 characters, with each type."""
_KEY_ORDER = (
    *("type", "name", "namespace", "doc", "fields", "symbols", "items", "values", "size"),
    *("default", "order", "aliases", "logicalType"),
)
_FIELD_KEY_ORDER = ("name", "type", "doc", "default", "order", "aliases")


@dataclass(frozen=True, slots=True)
class AvroSchema:
    """One parsed schema."""

    text: str
    """Canonical JSON text; types of referenced schemas appear by name only."""
    tree: Json
    """The schema with full names and referenced types written out: it has no references."""
    definitions: Mapping[str, Json]
    """Full name -> named type, of the schema itself and of referenced schemas."""
    flaw: str | None = None
    """A tolerated flaw: the schema can read its old data, but cannot be registered normally. None for a
    schema without a flaw."""

    @property
    def resolved_text(self) -> str:
        return _dump(_write(self.tree, ""))

    def fingerprint(self, references: Sequence[Sequence[Any]] = ()) -> str:
        """Return the SHA-256 in hex. It is equal exactly when canonical text and references are equal."""
        identity = json.dumps([json.loads(self.text), references], sort_keys=True)
        return hashlib.sha256(identity.encode()).hexdigest()


def parse(text: str, referenced: Mapping[str, Json] | None = None, *, flawed_too: bool = False) -> AvroSchema:
    """Return the schema in a JSON text; `referenced` holds the named types of the schemas it refers to.

    Raise InvalidSchema, with place and problem in one line, when the schema is invalid; with `flawed_too` a
    tolerated flaw is accepted.
    """
    referenced = referenced or {}
    reader = _Reader(dict(referenced))
    try:
        tree = reader.read(_load(text), "", "schema", 0)
        flaw = next(reader.flaws(), None)
        if flaw is not None and not flawed_too:
            raise InvalidSchema(flaw)
        alone = _inline(tree, referenced, set(), 0)
        return AvroSchema(_dump(_write(tree, "")), alone, reader.definitions, flaw)
    except RecursionError:  # a default may be nested deeper than its type
        raise _too_deep() from None


def _load(text: str) -> Json:
    def refuse(constant: str) -> NoReturn:
        raise InvalidSchema(f"{constant} is not JSON")

    def finite(number: str) -> float:
        value = float(number)
        return value if math.isfinite(value) else refuse(number)

    if has_too_many_values(text.encode(errors="surrogatepass")):
        raise InvalidSchema(f"the schema has more than {MOST_VALUES} values: split it by references")
    try:
        value = json.loads(text, parse_constant=refuse, parse_float=finite)
        text.encode()
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise InvalidSchema("the schema holds half of a surrogate pair, which is no text") from None
    except RecursionError:
        raise _too_deep() from None
    except ValueError as error:  # also an integer of thousands of digits
        raise InvalidSchema(f"the schema is not JSON: {error}") from None
    return value


def with_parts(tree: Mapping[str, Json], change: Callable[[Json], Json]) -> dict[str, Json]:
    """Return a copy of one type in which `change` has replaced the types of its fields, items or values."""
    kind = tree["type"]
    if kind in RECORDS:
        return {**tree, "fields": [{**field, "type": change(field["type"])} for field in tree["fields"]]}
    if kind in _PART:
        return {**tree, _PART[kind]: change(tree[_PART[kind]])}
    return dict(tree)


def _too_deep() -> InvalidSchema:
    return InvalidSchema(f"the schema is nested deeper than {_MAX_DEPTH} levels")


class DefaultChecker:
    """Checks that JSON values fit schemas as defaults. Checked values must stay alive.

    Apache's Python library does not check defaults. A wrong default fails the first reader that needs it,
    long after the schema was accepted. A value is checked once for each named type: unions of records that
    hold each other would otherwise be tried in every combination, twice as many for each level of nesting.
    Raise InvalidSchema after _MAX_STEPS: a long value may have to be tried with each of many types.
    """

    def __init__(self, definitions: Mapping[str, Any]) -> None:
        self._definitions = definitions
        self._seen: dict[tuple[int, str], bool] = {}
        self._symbols: dict[int, frozenset[str]] = {}
        self._steps = 0

    def fits(self, value: Any, schema: Any) -> bool:
        """Return True when the JSON value fits the schema as a default; for a union, one of its types."""
        self._count(1 + len(value) // 64 if isinstance(value, str) else 1)
        match schema:
            case list():
                return any(self.fits(value, branch) for branch in schema)
            case str():
                return self._fits_named(value, schema)
            case {"type": "array", "items": items}:
                return isinstance(value, list) and all(self.fits(item, items) for item in value)
            case {"type": "map", "values": values}:
                return isinstance(value, dict) and all(self.fits(item, values) for item in value.values())
            case {"type": "enum", "symbols": symbols}:
                return isinstance(value, str) and value in self._set_of(symbols)
            case {"type": "fixed", "size": size}:
                return _is_bytes(value) and len(value) == size
            case {"type": "record" | "error", "fields": fields}:
                self._count(len(fields))
                return isinstance(value, dict) and all(
                    self.fits(value[field["name"]], field["type"])
                    if field["name"] in value
                    else "default" in field
                    for field in fields
                )
        return _FITS[schema["type"]](value)

    def _count(self, steps: int) -> None:
        self._steps += steps
        if self._steps > _MAX_STEPS:
            raise InvalidSchema("the defaults are too long for their types to be checked: write smaller ones")

    def _set_of(self, symbols: list[str]) -> frozenset[str]:
        if id(symbols) not in self._symbols:
            self._symbols[id(symbols)] = frozenset(symbols)
        return self._symbols[id(symbols)]

    def _fits_named(self, value: Any, name: str) -> bool:
        if name not in self._definitions:
            return _FITS[name](value)
        key = id(value), name
        if key not in self._seen:
            self._seen[key] = self.fits(value, self._definitions[name])
        return self._seen[key]


def _is_bytes(value: Any) -> bool:
    """Return True for a default of type bytes: a string whose code points, 0 to 255, are the byte values."""
    return isinstance(value, str) and max(value, default="") <= "\xff"


_FITS: Mapping[str, Callable[[Any], bool]] = {
    "null": lambda value: value is None,
    "boolean": lambda value: isinstance(value, bool),
    "int": lambda value: type(value) is int and -1 << 31 <= value < 1 << 31,
    "long": lambda value: type(value) is int and -1 << 63 <= value < 1 << 63,
    "float": lambda value: type(value) in (int, float),
    "double": lambda value: type(value) in (int, float),
    "bytes": _is_bytes,
    "string": lambda value: isinstance(value, str),
}


class _Reader:
    """A reader of one schema, from top to bottom: in Avro a type is known from its definition on."""

    def __init__(self, definitions: dict[str, Json]) -> None:
        self.definitions = definitions
        self._fields: list[tuple[str, dict[str, Json]]] = []
        self._flaws: list[str] = []
        self._characters = 0

    def flaws(self) -> Iterator[str]:
        """Yield the tolerated flaws of the schema that was read."""
        yield from self._flaws
        defaults = DefaultChecker(self.definitions)
        for where, field in self._fields:
            if "default" in field and not defaults.fits(field["default"], field["type"]):
                yield f"{where}: default {json.dumps(field['default'])} does not fit its type"

    def read(self, value: Json, namespace: str, where: str, depth: int) -> Json:
        if depth > _MAX_DEPTH:
            raise _too_deep()
        if isinstance(value, str):
            return self._name(value, namespace, where)
        if isinstance(value, list):
            return self._union(value, namespace, where, depth)
        if not isinstance(value, dict):
            raise InvalidSchema(f"{where}: {json.dumps(value)} is not a schema")
        kind = value.get("type")
        if not isinstance(kind, str):
            raise InvalidSchema(f"{where}: a schema object needs a `type` that is a string")
        if kind in PRIMITIVES:
            return kind if len(value) == 1 else dict(value)
        if kind in NAMED:
            return self._definition(kind, value, namespace, where, depth)
        if key := _PART.get(kind):
            if key not in value:
                raise InvalidSchema(f"{where}: {kind} without `{key}`")
            inside = self._counted(f"{where}.{key}")
            return with_parts(value, lambda part: self.read(part, namespace, inside, depth + 1))
        return self._name(kind, namespace, where)

    def _counted(self, name: str) -> str:
        """Return a full name or path unchanged. Raise InvalidSchema above _MAX_NAMES characters in all."""
        self._characters += len(name)
        if self._characters > _MAX_NAMES:
            raise InvalidSchema(f"its names are longer than {_MAX_NAMES} characters in all: shorten them")
        return name

    def _check_lengths(self, names: Sequence[str], where: str) -> None:
        for name in names:
            if len(name) > MAX_NAME and not self._flaws:
                shown = f"the name {name[:50]}… has {len(name)} characters"
                self._flaws.append(f"{where}: {shown}: write at most {MAX_NAME}")

    def _name(self, name: str, namespace: str, where: str) -> str:
        if name in PRIMITIVES:
            return name
        candidates = self._counted(_join(namespace, name)), name
        for candidate in candidates:
            if candidate in self.definitions:
                return candidate
        raise UnknownType(f"{where}: unknown type {name!r}; define it before its first use", candidates)

    def _union(self, branches: list[Json], namespace: str, where: str, depth: int) -> list[Json]:
        if not branches and not self._flaws:
            self._flaws.append(f"{where}: a union needs at least one type")
        tree = [
            self.read(branch, namespace, self._counted(f"{where}[{i}]"), depth + 1)
            for i, branch in enumerate(branches)
        ]
        seen = set()
        for branch in tree:
            if isinstance(branch, list):
                raise InvalidSchema(f"{where}: a union must not hold a union directly")
            kind = branch if isinstance(branch, str) else branch["type"]
            label = branch["name"] if kind in NAMED else kind
            if label in seen:
                raise InvalidSchema(f"{where}: {label} is twice in the union")
            seen.add(label)
        return tree

    def _definition(
        self, kind: str, value: dict[str, Json], namespace: str, where: str, depth: int
    ) -> dict[str, Json]:
        full = self._counted(_full_name(value, namespace, where))
        if full in self.definitions:
            raise InvalidSchema(f"{where}: the name {full} is defined twice")
        tree = {key: item for key, item in value.items() if key != "namespace"}
        tree["name"] = full
        inner = full.rpartition(".")[0]
        if "aliases" in value:
            aliases = _names(value["aliases"], where, dots=True)
            tree["aliases"] = [self._counted(_join(inner, alias)) for alias in aliases]
        self._check_lengths([full, *tree.get("aliases", ())], where)
        self.definitions[full] = tree
        if kind == "enum":
            _check_enum(tree, full)
        elif kind == "fixed":
            size = tree.get("size")
            if not isinstance(size, int) or isinstance(size, bool) or size < 0:
                raise InvalidSchema(f"{full}: fixed needs a `size` of 0 or more")
        else:
            fields = tree.get("fields")
            if not isinstance(fields, list):
                raise InvalidSchema(f"{full}: record needs a list of `fields`")
            tree["fields"] = list(self._read_fields(fields, full, inner, depth))
        return tree

    def _read_fields(
        self, fields: list[Json], full: str, namespace: str, depth: int
    ) -> Iterator[dict[str, Json]]:
        seen: set[str] = set()
        for field in fields:
            if not isinstance(field, dict) or not isinstance(field.get("name"), str):
                raise InvalidSchema(f"{full}: a field needs a `name`")
            name = field["name"]
            where = self._counted(f"{full}.{name}")
            _names([name], full)
            if name in seen:
                raise InvalidSchema(f"{full}: field {name} occurs twice")
            seen.add(name)
            if "type" not in field:
                raise InvalidSchema(f"{where}: a field needs a `type`")
            tree = {**field, "type": self.read(field["type"], namespace, where, depth + 1)}
            order = tree.get("order", "ascending")
            if order not in ("ascending", "descending", "ignore"):
                raise InvalidSchema(f"{where}: order {order!r} is not ascending, descending or ignore")
            if order == "ascending":
                tree.pop("order", None)
            if "aliases" in tree:
                tree["aliases"] = _names(tree["aliases"], where)
            self._check_lengths([name, *tree.get("aliases", ())], full)
            self._fields.append((where, tree))
            yield tree


def _full_name(value: Mapping[str, Json], enclosing: str, where: str) -> str:
    name, namespace = value.get("name"), value.get("namespace")
    if not isinstance(name, str) or not (namespace is None or isinstance(namespace, str)):
        raise InvalidSchema(f"{where}: {value['type']} needs a `name` that is a string")
    full = _join(enclosing if namespace is None else namespace, name)
    _names([full], where, dots=True)
    if full.rpartition(".")[2] in PRIMITIVES:
        raise InvalidSchema(f"{where}: a type cannot be named {full}, after a primitive type")
    return full


def _join(namespace: str, name: str) -> str:
    return f"{namespace}.{name}" if namespace and "." not in name else name


def _names(names: Json, where: str, *, dots: bool = False) -> list[str]:
    if not isinstance(names, list):
        raise InvalidSchema(f"{where}: `aliases` must be a list of names")
    for name in names:
        parts = name.split(".") if dots and isinstance(name, str) else [name]
        if not all(isinstance(part, str) and _NAME.fullmatch(part) for part in parts):
            raise InvalidSchema(
                f"{where}: {json.dumps(name)} is not a name: letters, digits and _, no digit first"
            )
    return list(names)


def _check_enum(tree: Mapping[str, Json], full: str) -> None:
    symbols = tree.get("symbols")
    if not isinstance(symbols, list):
        raise InvalidSchema(f"{full}: enum needs a list of `symbols`")
    _names(symbols, full)
    if len(set(symbols)) < len(symbols):
        raise InvalidSchema(f"{full}: a symbol occurs twice")
    if "default" in tree and tree["default"] not in symbols:
        raise InvalidSchema(f"{full}: default {json.dumps(tree['default'])} is none of its symbols")


def _inline(tree: Json, referenced: Mapping[str, Json], written: set[str], depth: int) -> Json:
    """Return the tree with each referenced type written out at its first use only."""
    if depth > _MAX_DEPTH:
        raise _too_deep()
    if isinstance(tree, list):
        return [_inline(branch, referenced, written, depth + 1) for branch in tree]
    if isinstance(tree, str):
        if tree not in referenced or tree in written:
            return tree
        tree = referenced[tree]
    if tree["type"] in NAMED:
        if tree["name"] in written:
            return tree["name"]
        written.add(tree["name"])
    return with_parts(tree, lambda part: _inline(part, referenced, written, depth + 1))


def _write(tree: Json, enclosing: str) -> Json:
    """Return the tree as written inside a namespace: shortest names, keys in a fixed order."""
    if isinstance(tree, str):
        return _short(tree, enclosing)
    if isinstance(tree, list):
        return [_write(branch, enclosing) for branch in tree]
    if tree["type"] not in NAMED:
        return _ordered(with_parts(tree, lambda part: _write(part, enclosing)), _KEY_ORDER)
    namespace, _, name = tree["name"].rpartition(".")
    result = {**with_parts(tree, lambda part: _write(part, namespace)), "name": name}
    if namespace != enclosing:
        result["namespace"] = namespace
    if "aliases" in tree:
        result["aliases"] = [_short(alias, namespace) for alias in tree["aliases"]]
    if tree["type"] in RECORDS:
        result["fields"] = [_ordered(field, _FIELD_KEY_ORDER) for field in result["fields"]]
    return _ordered(result, _KEY_ORDER)


def _short(full_name: str, enclosing: str) -> str:
    namespace, _, name = full_name.rpartition(".")
    return name if namespace == enclosing else full_name


def _ordered(value: Mapping[str, Json], order: Sequence[str]) -> dict[str, Json]:
    rest = sorted(key for key in value if key not in order)
    return {key: value[key] for key in (*order, *rest) if key in value}


def _dump(value: Json) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
