"""ApiVersions, v0 to v3; the answer to any higher version is v0's with error 35 and the full list.

Its response header is the old one at every version: the client does not know yet what the broker speaks.
Left out: features, and what a client says about its software.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from millrace.errors import ErrorCode
from millrace.handlers.table import Api, Services
from millrace.server.request import Request
from millrace.wire.codec import encode, encode_error
from millrace.wire.messages import ApiKey, ApiVersionsResponse

_TOLD, _NEWER = range(4), range(4, 64)


def api_versions(apis: Sequence[Api]) -> Api:
    """The API that tells clients about `apis` and about itself."""
    versions = {api.key: api.versions for api in apis if api.versions} | {ApiKey.API_VERSIONS: _TOLD}
    ranges = tuple(
        ApiVersionsResponse.ApiVersion(api_key=key, min_version=told[0], max_version=told[-1])
        for key, told in sorted(versions.items())
    )

    def answer(version: int, code: ErrorCode) -> bytes:
        return encode(ApiVersionsResponse(error_code=code, api_keys=ranges), ApiKey.API_VERSIONS, version)

    answers = {version: answer(version, ErrorCode.NONE) for version in _TOLD}
    newer = answer(0, ErrorCode.UNSUPPORTED_VERSION)

    def serve(services: Services, request: Request) -> None:
        request.answer([answers.get(request.api_version, newer)])

    refusal = partial(encode_error, ApiVersionsResponse, ApiKey.API_VERSIONS)
    return Api(key=ApiKey.API_VERSIONS, versions=_TOLD, private_versions=_NEWER, serve=serve, refusal=refusal)
