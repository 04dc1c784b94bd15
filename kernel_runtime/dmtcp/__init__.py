"""DMTCP's programs, typed: coordinators, launching, restarting, images. See docs/dmtcp.md.

Usable by itself: of the rest of this project it imports the base class of errors only.

    with Coordinator(Path("work")) as coordinator:
        launch(coordinator, ["python", "train.py"])
        images = coordinator.checkpoint()
        coordinator.kill()
        restart(coordinator, images)
"""

from kernel_runtime.dmtcp.coordinator import Client, Coordinator, Status
from kernel_runtime.dmtcp.errors import (
    CheckpointIncomplete,
    CommandFailed,
    CommandTimeout,
    CoordinatorFailed,
    CoordinatorGone,
    DmtcpError,
    DmtcpMissing,
    DmtcpTooOld,
    ImageUnreadable,
)
from kernel_runtime.dmtcp.images import ImageInfo, files_of, images_in, inspect
from kernel_runtime.dmtcp.programs import (
    clean_environment,
    copy_restart,
    launch,
    launch_command,
    restart,
    restart_command,
)
from kernel_runtime.dmtcp.tools import Tools, find

__all__ = [
    "CheckpointIncomplete",
    "Client",
    "CommandFailed",
    "CommandTimeout",
    "Coordinator",
    "CoordinatorFailed",
    "CoordinatorGone",
    "DmtcpError",
    "DmtcpMissing",
    "DmtcpTooOld",
    "ImageInfo",
    "ImageUnreadable",
    "Status",
    "Tools",
    "clean_environment",
    "copy_restart",
    "files_of",
    "find",
    "images_in",
    "inspect",
    "launch",
    "launch_command",
    "restart",
    "restart_command",
]
