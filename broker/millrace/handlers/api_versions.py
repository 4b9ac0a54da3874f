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

SERVED = (0, 3)
_ANY_VERSION = frozenset(range(64))


def api_versions(apis: Sequence[Api]) -> Api:
    """The API that tells clients about `apis` and about itself."""
    lines = [
        ApiVersion(api_key=api.key, min_version=api.advertised[0], max_version=api.advertised[1])
        for api in apis
        if api.advertised is not None
    ]
    lines.append(ApiVersion(api_key=ApiKey.API_VERSIONS, min_version=SERVED[0], max_version=SERVED[1]))
    lines.sort(key=lambda line: line.api_key)
    answers = {version: _encode(lines, version, ErrorCode.NONE) for version in range(SERVED[1] + 1)}
    refusal = _encode(lines, 0, ErrorCode.UNSUPPORTED_VERSION)

    def handle(broker: Broker, request: Request) -> None:
        request.answer([answers.get(request.api_version, refusal)])

    return Api(key=ApiKey.API_VERSIONS, versions=_ANY_VERSION, advertised=SERVED, handle=handle)


def _encode(lines: Sequence[ApiVersion], version: int, error: ErrorCode) -> bytes:
    response = ApiVersionsResponse(error_code=error, api_keys=tuple(lines))
    return encode(response, ApiKey.API_VERSIONS, version)
