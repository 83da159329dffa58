"""The check of commands that measure the native engine on the CPU."""

from galley.errors import SettingsError
from galley.settings.engine import EngineSettings


def require_cpu(settings: EngineSettings, command: str) -> None:
    """Raise SettingsError, with the remedy, unless the settings run the native engine on the CPU.

    Args:
        settings: of the engine.
        command: that measures it, such as "galley lab".
    """
    from galley.ops.choice import executor_factory
    from galley.settings.engine_choice import NATIVE_ENGINE

    executor_factory("cpu")  # raises an error with the remedy if there is no native module
    for name, value, measured in (
        ("engine", settings.engine_name, (NATIVE_ENGINE,)),
        ("executor", settings.executor, ("auto", "cpu")),
        ("device", settings.device, ("cpu",)),
    ):
        if value not in measured:
            raise SettingsError(
                f"{command} measures {name} {measured[-1]!r}, but for {settings.model or 'galley-demo'} "
                f"{name} is {value!r}"
            )
