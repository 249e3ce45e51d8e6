"""A real JupyterLab server, with nothing of its user's in it."""

import contextlib
import importlib.util
import json
import secrets
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.processes import running

#: What the side panel is made of.
PACKAGES = ("jupyterlab", "dask_labextension")


def missing() -> str | None:
    """Return why there can be no JupyterLab here, or None."""
    lacking = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if not lacking:
        return None
    return f"no {' and '.join(lacking)} (pip install '.[browser]')"


@contextlib.contextmanager
def jupyterlab(directory: Path) -> Iterator[str]:
    """Start a server; its address, with the token."""
    token = secrets.token_hex(16)
    settings = directory / "config" / "labconfig"
    settings.mkdir(parents=True)
    # Neither news nor updates are asked for over the network.
    disabled = {"@jupyterlab/apputils-extension:announcements": True}
    (settings / "page_config.json").write_text(json.dumps({"disabledExtensions": disabled}))
    # The theme is the system's, as the browser tells it.
    themes = {"@jupyterlab/apputils-extension:themes": {"adaptive-theme": True}}
    (settings / "default_setting_overrides.json").write_text(json.dumps(themes))
    work = directory / "work"
    work.mkdir()
    environment = {
        "HOME": str(directory),
        "JUPYTER_CONFIG_DIR": str(directory / "config"),
        "JUPYTER_DATA_DIR": str(directory / "data"),
        "JUPYTER_RUNTIME_DIR": str(directory / "runtime"),
        "JUPYTER_PREFER_ENV_PATH": "1",
    }
    command = [
        *(sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root"),
        *("--ServerApp.ip=127.0.0.1", "--ServerApp.port=0"),
        f"--IdentityProvider.token={token}",
        f"--ServerApp.root_dir={work}",
        "--LabApp.extension_manager=readonly",
    ]
    with running() as start:
        server = start(*command, env=environment)
        address = server.wait_for(r"(http://127\.0\.0\.1:\d+/lab)\?token=")[1]
        yield f"{address}?token={token}"
