"""Checks of ``jupyter timetravel doctor``: time travel in JupyterLab and over HTTP."""

from __future__ import annotations

import sys
from importlib.metadata import version
from typing import Any, Final

from jupyter_timetravel.findings import FAULTY, FINE, LIMITED, SKIPPED, Check, Finding

NAME: Final = "jupyter_timetravel"
SIDEBAR: Final = "jupyter-timetravel"


def check_server_extension() -> Finding:
    """Whether a Jupyter server of this environment would load the extension."""
    try:
        from jupyter_core.paths import jupyter_config_path
        from jupyter_server.extension.config import ExtensionConfigManager
    except ImportError:
        return Finding(SKIPPED, "no Jupyter Server in this environment")
    manager: Any = ExtensionConfigManager(read_config_path=jupyter_config_path())
    state = manager.get_jpserver_extensions().get(NAME)
    if state:
        return Finding(FINE, "enabled")
    return Finding(
        FAULTY if state is False else LIMITED,
        f"{NAME} is {'turned off' if state is False else 'not enabled'}: no REST interface and no "
        "client by URL. Magics and sidebar work without.",
        f"jupyter server extension enable --sys-prefix {NAME}",
    )


def check_sidebar() -> Finding:
    """Whether a JupyterLab of this environment would load the sidebar, of this very version."""
    try:
        from jupyter_core.paths import jupyter_path
        from jupyterlab_server.config import get_federated_extensions, get_page_config
    except ImportError:
        return Finding(SKIPPED, "no JupyterLab or Notebook 7 in this environment")
    folders = jupyter_path("labextensions")
    found = get_federated_extensions(folders).get(SIDEBAR)
    if found is None:
        return Finding(
            LIMITED,
            f"{SIDEBAR} is in none of JupyterLab's directories: no sidebar. Magics, commands and "
            "REST work without.",
            f"{sys.executable} -m pip install --force-reinstall --no-deps jupyter_timetravel",
        )
    own = version(NAME)
    if found["version"] != own:
        return Finding(
            FAULTY,
            f"the sidebar in {found['ext_path']} is of version {found['version']}, this package of "
            f"{own}. They may not understand each other.",
            "Install one version in the environments of JupyterLab and of its kernels, and load "
            "the page anew.",
        )
    if _is_disabled(get_page_config(folders)):
        return Finding(
            FAULTY,
            "the sidebar is turned off. Magics, commands and REST work without.",
            f"jupyter labextension enable {SIDEBAR}",
        )
    return Finding(FINE, f"version {own}")


def _is_disabled(page: dict[str, Any]) -> bool:
    disabled = page.get("disabledExtensions") or {}
    on = {name for name in disabled if not isinstance(disabled, dict) or disabled[name]}
    return SIDEBAR in on or any(name.startswith(f"{SIDEBAR}:") for name in on)


CHECKS: tuple[Check, ...] = (
    Check("server extension", "time travel over HTTP", check_server_extension),
    Check("sidebar", "the timeline in JupyterLab and Notebook 7", check_sidebar),
)
