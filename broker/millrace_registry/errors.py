"""Errors of the registry, with Confluent's error codes, on which clients depend."""

from __future__ import annotations

from enum import IntEnum


class ErrorCode(IntEnum):
    """The `error_code` of an answer; its first three digits are the HTTP status."""

    BAD_REQUEST = 400  # the body is not a JSON object with the fields it needs
    REQUEST_TOO_SLOW = 408  # its body was not whole in time
    REQUEST_TOO_LARGE = 413
    UNSUPPORTED_MEDIA_TYPE = 415
    NOT_KEPT = 422  # a string that is no valid text, or a setting or metadata that is not supported
    FAILED = 500

    UNAUTHENTICATED = 40101  # the request has no valid token
    FORBIDDEN = 40301  # the principal lacks the role that the request needs

    SUBJECT_NOT_FOUND = 40401  # no live version is registered under it
    VERSION_NOT_FOUND = 40402
    SCHEMA_NOT_FOUND = 40403  # no schema has this id, or the subject does not hold this schema
    SUBJECT_SOFT_DELETED = 40404  # only permanent=true can delete more
    SUBJECT_NOT_SOFT_DELETED = 40405  # must be deleted before it is deleted permanently
    VERSION_SOFT_DELETED = 40406
    VERSION_NOT_SOFT_DELETED = 40407
    COMPATIBILITY_NOT_CONFIGURED = 40408  # the subject has no level of its own
    MODE_NOT_CONFIGURED = 40409

    INCOMPATIBLE_SCHEMA = 40901

    INVALID_SCHEMA = 42201  # no Avro schema
    INVALID_VERSION = 42202
    INVALID_COMPATIBILITY_LEVEL = 42203
    INVALID_MODE = 42204
    OPERATION_NOT_PERMITTED = 42205  # the mode forbids it, a number would be overwritten, or none is left
    REFERENCE_EXISTS = 42206  # other schemas refer to this one
    ID_DOES_NOT_MATCH = 42207  # the schema to import has another id here
    INVALID_SUBJECT = 42208
    SCHEMA_TOO_LARGE = 42209
    INVALID_RULE_SET = 42210  # data rules are not kept: dropping one silently could leak data

    STORE_FAILED = 50001


class RegistryError(Exception):
    """A request that the registry refuses; the text has the reason and the remedy."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code


class InvalidSchema(RegistryError):
    """The text is no valid Avro schema, or it refers to a schema that does not exist."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.INVALID_SCHEMA, message)


class UnknownType(InvalidSchema):
    """The schema uses a name that it does not define; `names` are the possible full names."""

    def __init__(self, message: str, names: tuple[str, ...]) -> None:
        super().__init__(message)
        self.names = names
