"""Whether an image can run the kernel of this server."""

from __future__ import annotations

from importlib.metadata import version

from jupyter_timetravel.containers.daemon import Daemon, Packages
from jupyter_timetravel.containers.errors import ContainerError
from jupyter_timetravel.containers.options import ContainerOptions


def fitting(daemon: Daemon, options: ContainerOptions) -> tuple[str, Packages]:
    """The id of the image that the options name, and the packages in it.

    Raises ContainerError where there is no such image, or none with this very version.
    """
    image = daemon.image(options.image)
    there = daemon.packages(image, options.python, options.user)
    here = version("jupyter_timetravel")
    if there.version != here:
        raise ContainerError(
            f"The image {options.image!r} has jupyter_timetravel {there.version}, the server has "
            f"{here}. Nothing was started; build the image with the same version "
            f"(--build-arg PACKAGE=jupyter_timetravel=={here})."
        )
    return image, there
