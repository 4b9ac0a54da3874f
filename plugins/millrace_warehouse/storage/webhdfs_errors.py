"""Refusals of WebHDFS as errors: temporary, of a token that has ended, or with a sentence for the user."""

from __future__ import annotations

import re

import httpx

from millrace.errors import ConfigError, MillraceError
from millrace_warehouse.storage.hadoop_settings import CA_VARIABLE

_TEMPORARY = re.compile(
    r"IOException|RetriableException|LeaseExpiredException"  # the DataNode's own client has failed
    r"|SafeModeException|StandbyException|BlockMissingException"
    r"|(?:Connect|Socket)(?:Timeout)?Exception|NoRouteToHostException|EOFException"
)
"""Classes of exceptions, without their packages, after which another try may succeed."""
_AFTER_THE_END = "out of the range [0,"
_INVALID_TOKEN = re.compile(r"SecretManager\$InvalidToken: *(.*)")
_NO_DATANODE = re.compile(r"could only be (?:written|replicated) to \d+ [^\n]*")
_STANDBY = (
    "this NameNode is a standby: write hdfs://<nameservice>/ and point HADOOP_CONF_DIR to the configuration"
    " that names both"
)
_SENTENCES = {
    r"(?:NS|DS)QuotaExceededException|QuotaByStorageTypeExceededException": "{message}: raise the quota (hdfs"
    " dfsadmin -setQuota, -setSpaceQuota) or delete what is not needed, then run again",
    r"SafeModeException": "the NameNode is in safe mode: see `hdfs dfsadmin -safemode get`, and run again"
    " when it says OFF",
    r"AccessControlException": "{message}: let this user write to the warehouse's folder (hdfs dfs -chown or"
    " -setfacl)",
    r"StandbyException": _STANDBY,
    r"BlockMissingException": "no DataNode that runs has a block of a file ({message}): start the DataNodes,"
    " then run again",
    r"(?:Connect|Socket)(?:Timeout)?Exception|NoRouteToHostException|EOFException": "the NameNode does not"
    " answer: check its address and that it runs, then run again",
}
"""Class of an exception, without its package -> the sentence for the user."""


class NotNow(Exception):
    """A failure that may be temporary."""


class TokenEnded(MillraceError):
    """A delegation token has expired, or was cancelled."""


class Unusable(MillraceError):
    """A server that is no WebHDFS, or refuses the ticket of this user. Another NameNode may serve."""


def check_trusted(server: str, error: Exception) -> None:
    """Raise ConfigError if a request has failed because of the server's certificate: no retry can help."""
    if "CERTIFICATE_VERIFY_FAILED" in str(error):
        raise ConfigError(
            f"{server} has a certificate that is not trusted ({error}): let {CA_VARIABLE} name the PEM file"
            " of the authority that issued it"
        ) from None


def refusal(answer: httpx.Response, path: str) -> Exception:
    """Return the exception for an answer other than success."""
    try:
        remote = answer.json()["RemoteException"]
        name, message = str(remote["javaClassName"]), str(remote["message"]).split("\n", 1)[0]
    except (ValueError, KeyError, TypeError):
        reason = f"{answer.request.url.netloc.decode()} answers {answer.status_code} {answer.reason_phrase}"
        if answer.is_server_error:
            return NotNow(reason)
        return Unusable(f"{path}: {reason} to a request of WebHDFS: check what stands at that address")
    if name.endswith(".FileNotFoundException"):
        return FileNotFoundError(f"{path}: {message}")
    if name.endswith(".FileAlreadyExistsException"):
        return FileExistsError(f"{path}: {message}")
    if _AFTER_THE_END in message:
        return EOFError(f"{path}: {message}")
    if ended := _INVALID_TOKEN.search(message):
        if ended[1] == "StandbyException":
            return NotNow(_STANDBY)
        return TokenEnded(
            f"{path}: HDFS takes the delegation token no longer ({ended[1]}): run the command again; its"
            " driver renews the token while it runs"
        )
    kind = name.rpartition(".")[2]
    sentence = _explained(kind, message)
    if _TEMPORARY.fullmatch(kind):
        return NotNow(sentence or message)
    return MillraceError(f"{path}: {sentence or f'{name}: {message}'}")


def _explained(kind: str, message: str) -> str | None:
    """Translate one of Hadoop's exceptions by its class and message. Return None for an unknown exception."""
    if no_datanode := _NO_DATANODE.search(message):
        return (
            f"no DataNode takes a block ({no_datanode[0][:200]}): check that DataNodes run and have space"
            " (hdfs dfsadmin -report), then run again"
        )
    sentence = next((text for kinds, text in _SENTENCES.items() if re.fullmatch(kinds, kind)), None)
    return sentence and sentence.format(message=message.strip().rstrip(".;:")[:300])
