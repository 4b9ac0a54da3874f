"""ApiVersions, v0 to v3; the answer to any higher version is v0's with error 35 and the full list.

Its response header is the old one at every version: the client does not know yet what the broker speaks.
Left out: features, and what a client says about its software.
"""

from __future__ import annotations

from collections.abc import Sequence

from millrace.broker.broker import Broker
from millrace.errors import ErrorCode
from millrace.handlers.table import Api
from millrace.server.request import Request
from millrace.wire.codec import encode
from millrace.wire.messages import ApiKey, ApiVersion, ApiVersionsResponse

_TOLD, _NEWER = range(4), range(4, 64)


def api_versions(apis: Sequence[Api]) -> Api:
    """The API that tells clients about `apis` and about itself."""
    told = {api.key: api.versions for api in apis if api.versions} | {ApiKey.API_VERSIONS: _TOLD}
    lines = tuple(
        ApiVersion(api_key=key, min_version=versions[0], max_version=versions[-1])
        for key, versions in sorted(told.items())
    )
    answers = {version: _encode(lines, version, ErrorCode.NONE) for version in _TOLD}
    refusal = _encode(lines, 0, ErrorCode.UNSUPPORTED_VERSION)

    def serve(broker: Broker, request: Request) -> None:
        request.answer([answers.get(request.api_version, refusal)])

    return Api(key=ApiKey.API_VERSIONS, versions=_TOLD, private_versions=_NEWER, serve=serve)


def _encode(lines: tuple[ApiVersion, ...], version: int, error: ErrorCode) -> bytes:
    response = ApiVersionsResponse(error_code=error, api_keys=lines)
    return encode(response, ApiKey.API_VERSIONS, version)
