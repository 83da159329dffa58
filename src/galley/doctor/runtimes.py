"""The libraries that compute tensor models, and what they can compute on."""

from galley.doctor.findings import Context, Finding
from galley.errors import SettingsError
from galley.runtimes.onnx import import_onnxruntime


def check(context: Context) -> list[Finding]:
    """List onnxruntime's execution providers; return nothing where it is not installed."""
    try:
        runtime = import_onnxruntime()
    except SettingsError:
        return []
    providers = list(runtime.get_available_providers())
    return [
        Finding(
            check="onnxruntime",
            level="ok",
            found=f"{runtime.__version__}, execution providers {', '.join(providers)}",
            figures={"version": runtime.__version__, "execution_providers": ",".join(providers)},
        )
    ]
