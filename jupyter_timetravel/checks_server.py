"""Checks of ``jupyter timetravel doctor``: time travel over HTTP."""

from __future__ import annotations

from typing import Any, Final

from jupyter_timetravel.findings import FINE, LIMITED, SKIPPED, Check, Finding

NAME: Final = "jupyter_timetravel"


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
        LIMITED,
        f"{NAME} is {'turned off' if state is False else 'not enabled'}: no REST interface and no "
        "client by URL. Magics and sidebar work without.",
        f"jupyter server extension enable --sys-prefix {NAME}",
    )


CHECKS: tuple[Check, ...] = (
    Check("server extension", "time travel over HTTP", check_server_extension),
)
