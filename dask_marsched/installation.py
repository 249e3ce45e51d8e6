"""Returns the versions that are installed, and explains missing modules to users."""

from __future__ import annotations

import platform

import dask
import distributed

__version__ = "0.1.0"


def own_versions() -> dict[str, str]:
    """Return the versions of this process."""
    return {
        "dask_marsched": __version__,
        "distributed": distributed.__version__,
        "dask": dask.__version__,
        "python": platform.python_version(),
    }


def how_to_install(extra: str | None = None) -> str:
    """Return the command that installs the package, which is not published, with an extra."""
    what = "." if extra is None else f"'.[{extra}]'"
    return f"`pip install {what}` in a clone of dask_marsched"


def explain_missing_module(error: ImportError) -> str:
    """Return which package to install where, after an import failed on the scheduler."""
    package = (error.name or "").partition(".")[0]
    if package == "dask_marsched" and isinstance(error, ModuleNotFoundError):
        return (
            f"dask_marsched is not installed on the scheduler: run {how_to_install()}, in the "
            "scheduler's environment, and restart it, or leave scheduler_plugin out"
        )
    if package == "dask_marsched":
        return (
            f"dask_marsched on the scheduler is of another version than here ({error}): "
            "install the same one in both environments and restart the scheduler"
        )
    return (
        f"the plugin cannot be loaded on the scheduler ({error}): install the module "
        f"{package or 'named there'} in the scheduler's environment too"
    )
