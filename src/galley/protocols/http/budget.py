"""A limit on the bytes that the bodies of all requests hold together."""

from typing import Final

from galley.protocols.common.errors import ApiError

_RETRY_SECONDS: Final = "5"


class ByteBudget:
    """A shared limit on the bytes that requests may hold together."""

    def __init__(self, limit: int, *, of: str, setting: str, code: str) -> None:
        """
        Args:
            limit: the total, in bytes.
            of: name of what holds the bytes, for the error.
            setting: the flag that sets the limit, for the error.
            code: the error's code.
        """
        self._limit = self._left = limit
        self._of, self._setting, self._code = of, setting, code

    def take(self, size: int) -> None:
        """Reserve ``size`` more bytes.

        Raises:
            ApiError: 503, and nothing is reserved, if that exceeds the limit.
        """
        if size > self._left:
            raise ApiError(
                503,
                f"{self._of} use all of their {self._limit} bytes ({self._setting}); "
                "try again later",
                type="service_unavailable",
                code=self._code,
                headers={"Retry-After": _RETRY_SECONDS, "Connection": "close"},
            )
        self._left -= size

    def give_back(self, size: int) -> None:
        """Release ``size`` bytes reserved before."""
        self._left += size
