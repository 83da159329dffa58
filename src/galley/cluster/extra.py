"""Steps before Ray is imported: check that it is installed, and set its token."""

import os
from importlib.util import find_spec
from pathlib import Path

from galley.errors import SettingsError, pip_install


def require_ray() -> None:
    """Raise SettingsError unless the extra ``ray`` is installed; import nothing."""
    if find_spec("ray") is None:
        raise SettingsError(f"Ray Serve is not installed: {pip_install('ray')}")


def ray_environment(token_file: str) -> dict[str, str]:
    """Return the variables by which Ray's own connections need the cluster's token, too.

    Variables that are set already have precedence. Ray reads them when it is imported.

    Raises:
        SettingsError: the token cannot be read.
    """
    path = Path(token_file).absolute()
    if not path.is_file():
        raise SettingsError(f"network: token_file {path} is not a file")
    given = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(path)}
    return {name: os.environ.get(name, value) for name, value in given.items()}
