"""Where clients find the kernel: the connection file that names it, and the channels there."""

from __future__ import annotations

import os
from typing import Any

from jupyter_client.connect import ConnectionFileMixin, write_connection_file

from kernel_runtime.supervisor.channels import Channels


class Connection(ConnectionFileMixin):
    """What a connection file says; it is written if there was none."""

    def open(self, channels: Channels) -> None:
        """Bind the channels to it. Raises AddressTaken."""
        is_there = bool(self.connection_file) and os.path.exists(self.connection_file)
        if is_there:
            self.load_connection_file()
        self.session.key  # noqa: B018 - made by the mixin from the file
        where: dict[str, Any] = {
            "transport": self.transport,
            "ip": self.ip,
            **{
                f"{name}_port": getattr(self, f"{name}_port")
                for name in ("shell", "iopub", "stdin", "control", "hb")
            },
        }
        channels.open(self.session, where, self._curve())
        if not is_there:
            self._write(channels)

    def _curve(self) -> dict[str, bytes]:
        public = getattr(self, "curve_publickey", None)
        secret = getattr(self, "curve_secretkey", None)
        return {"public": public, "secret": secret} if public and secret else {}

    def _write(self, channels: Channels) -> None:
        ports: dict[str, Any] = {**channels.ports}
        write_connection_file(
            self.connection_file,
            ip=self.ip,
            key=self.session.key,
            transport=self.transport,
            **ports,
        )
        self.log.info("To connect: jupyter console --existing %s", self.connection_file)
