"""The requests and responses of logins and ACLs, as values; see `wire.messages`."""

from __future__ import annotations

from millrace.wire.fields import ApiMessage, array, data, i8, i16, i32, i64, string
from millrace.wire.messages import ApiKey


class SaslHandshakeRequest(ApiMessage, request_of=ApiKey.SASL_HANDSHAKE):
    mechanism: str = string()


class SaslHandshakeResponse(ApiMessage, response_of=ApiKey.SASL_HANDSHAKE):
    error_code: int = i16()
    mechanisms: tuple[str, ...] = array(string())


class SaslAuthenticateRequest(ApiMessage, request_of=ApiKey.SASL_AUTHENTICATE):
    auth_bytes: bytes = data()


class SaslAuthenticateResponse(ApiMessage, response_of=ApiKey.SASL_AUTHENTICATE):
    error_code: int = i16()
    error_message: str | None = string(null_since=0, default=None)
    auth_bytes: bytes = data(default=b"")
    session_lifetime: int = i64(since=1, default=0)  # ms; 0: the login holds as long as the connection


class DescribeAclsRequest(ApiMessage, request_of=ApiKey.DESCRIBE_ACLS):
    resource_type_filter: int = i8()  # 1 here and below: any
    resource_name_filter: str | None = string(null_since=0)
    pattern_type_filter: int = i8()
    principal_filter: str | None = string(null_since=0)
    host_filter: str | None = string(null_since=0)
    operation: int = i8()
    permission_type: int = i8()


class DescribeAclsResponse(ApiMessage, response_of=ApiKey.DESCRIBE_ACLS):
    class Resource(ApiMessage):
        class AclDescription(ApiMessage):
            principal: str = string()
            host: str = string()
            operation: int = i8()
            permission_type: int = i8()

        resource_type: int = i8()
        resource_name: str = string()
        pattern_type: int = i8()
        acls: tuple[AclDescription, ...] = array(AclDescription)

    throttle_time: int = i32(default=0)
    error_code: int = i16()
    error_message: str | None = string(null_since=0, default=None)
    resources: tuple[Resource, ...] = array(Resource)


class CreateAclsRequest(ApiMessage, request_of=ApiKey.CREATE_ACLS):
    class Creation(ApiMessage):
        resource_type: int = i8()
        resource_name: str = string()
        resource_pattern_type: int = i8()
        principal: str = string()
        host: str = string()
        operation: int = i8()
        permission_type: int = i8()

    creations: tuple[Creation, ...] = array(Creation)


class CreateAclsResponse(ApiMessage, response_of=ApiKey.CREATE_ACLS):
    class Result(ApiMessage):
        error_code: int = i16()
        error_message: str | None = string(null_since=0)

    throttle_time: int = i32(default=0)
    results: tuple[Result, ...] = array(Result)


class DeleteAclsRequest(ApiMessage, request_of=ApiKey.DELETE_ACLS):
    filters: tuple[DescribeAclsRequest, ...] = array(DescribeAclsRequest)


class DeleteAclsResponse(ApiMessage, response_of=ApiKey.DELETE_ACLS):
    class FilterResult(ApiMessage):
        class Match(ApiMessage):
            error_code: int = i16(default=0)
            error_message: str | None = string(null_since=0, default=None)
            resource_type: int = i8()
            resource_name: str = string()
            pattern_type: int = i8()
            principal: str = string()
            host: str = string()
            operation: int = i8()
            permission_type: int = i8()

        error_code: int = i16()
        error_message: str | None = string(null_since=0)
        matching_acls: tuple[Match, ...] = array(Match, default=())

    throttle_time: int = i32(default=0)
    filter_results: tuple[FilterResult, ...] = array(FilterResult)
