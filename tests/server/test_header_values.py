"""Headers of requests by name, and headers that are set on responses."""

from typing import Any

from galley.protocols.http.header_values import header_values, set_headers


def test_the_first_of_several_values_counts_as_in_starlette() -> None:
    scope: dict[str, Any] = {"headers": [(b"a", b"1"), (b"b", b"\xe9"), (b"a", b"2")]}
    assert header_values(scope) == {"a": "1", "b": "\xe9"}


def test_other_headers_of_a_scope_are_read_again() -> None:
    """The middleware that decodes bodies removes headers."""
    scope: dict[str, Any] = {"headers": [(b"a", b"1"), (b"b", b"2")], "state": {}}
    assert header_values(scope) is header_values(scope)
    scope["headers"] = scope["headers"][1:]
    assert header_values(scope) == {"b": "2"}


def test_set_headers_replace_those_of_the_same_name() -> None:
    message: dict[str, Any] = {"headers": [(b"x-id", b"old"), (b"y", b"1"), (b"x-id", b"older")]}
    set_headers(message, {"X-Id": "new", "Z": "\xe9"})
    assert message["headers"] == [(b"y", b"1"), (b"x-id", b"new"), (b"z", b"\xe9")]


def test_a_message_without_headers_gets_them() -> None:
    message: dict[str, Any] = {"type": "websocket.accept"}
    set_headers(message, {})
    assert "headers" not in message
    set_headers(message, {"A": "1"})
    assert message["headers"] == [(b"a", b"1")]
