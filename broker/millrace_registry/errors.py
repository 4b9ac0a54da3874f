"""Every refusal of the registry: a class each, carrying its HTTP status and the code clients compare.

The codes are those of Confluent's registry, because clients decide by them. One place, `app.py`, turns
them into answers.
"""

from __future__ import annotations


class RegistryError(Exception):
    """A request the registry refuses; the text says why and what to do."""

    status = 500
    code = 50001


class SubjectNotFound(RegistryError):
    """No live version is registered under the subject."""

    status, code = 404, 40401


class VersionNotFound(RegistryError):
    """The subject has no such live version."""

    status, code = 404, 40402


class SchemaNotFound(RegistryError):
    """No schema has this id, or the subject does not hold this schema."""

    status, code = 404, 40403


class SubjectSoftDeleted(RegistryError):
    """The subject was deleted before; only permanent=true can delete more."""

    status, code = 404, 40404


class SubjectNotSoftDeleted(RegistryError):
    """A subject must be deleted before it is deleted permanently."""

    status, code = 404, 40405


class VersionSoftDeleted(RegistryError):
    """The version was deleted before; only permanent=true can delete more."""

    status, code = 404, 40406


class VersionNotSoftDeleted(RegistryError):
    """A version must be deleted before it is deleted permanently."""

    status, code = 404, 40407


class CompatibilityNotConfigured(RegistryError):
    """The subject has no level of its own."""

    status, code = 404, 40408


class ModeNotConfigured(RegistryError):
    """The subject has no mode of its own."""

    status, code = 404, 40409


class IncompatibleSchema(RegistryError):
    """The schema breaks the subject's compatibility level."""

    status, code = 409, 40901


class InvalidSchema(RegistryError):
    """The text is no Avro schema, or its type is not Avro."""

    status, code = 422, 42201


class InvalidVersion(RegistryError):
    """A version is a number from 1 to 2147483647, -1 or `latest`."""

    status, code = 422, 42202


class InvalidCompatibilityLevel(RegistryError):
    """Not one of the seven compatibility levels."""

    status, code = 422, 42203


class InvalidMode(RegistryError):
    """Not one of the modes this registry has."""

    status, code = 422, 42204


class OperationNotPermitted(RegistryError):
    """The mode forbids it, or an id or version would be overwritten."""

    status, code = 422, 42205


class ReferenceExists(RegistryError):
    """Other schemas refer to this one."""

    status, code = 422, 42206


class IdDoesNotMatch(RegistryError):
    """The schema to import is known already, under another id."""

    status, code = 422, 42207


class InvalidSubject(RegistryError):
    """The subject's name cannot be used."""

    status, code = 422, 42208


class SchemaTooLarge(RegistryError):
    """The schema's text exceeds the limit."""

    status, code = 422, 42209


class InvalidRuleSet(RegistryError):
    """Data rules were sent; this registry does not keep them, and dropping one silently could leak data."""

    status, code = 422, 42210


class InvalidText(RegistryError):
    """A string of the request holds what is no text, or no text that a database keeps."""

    status, code = 422, 422


class BadRequest(RegistryError):
    """The request's body is not a JSON object with the fields it needs."""

    status, code = 400, 400


class RequestTooLarge(RegistryError):
    """The request's body exceeds the limit."""

    status, code = 413, 413


class UnsupportedMediaType(RegistryError):
    """The body's media type is none that the registry reads."""

    status, code = 415, 415
