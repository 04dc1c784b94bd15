"""What is overlaid, passed through and hidden, on many hosts."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernel_runtime.engines.overlay.plan import (
    Host,
    MountPoint,
    Plan,
    RootPlan,
    make_plan,
    read_mounts,
    this_host,
)

TOP = ["dev", "etc", "home", "opt", "proc", "root", "run", "sys", "tmp", "usr", "var"]
TREE = {
    "/": TOP,
    "/home": ["u", "v"],
    "/home/u": [".local", "data", "proj"],
    "/home/u/.local": ["share"],
    "/var": ["cache", "lib", "log"],
    "/var/lib": ["docker", "dpkg"],
}
PSEUDO = [
    ("/", "ext4"), ("/proc", "proc"), ("/sys", "sysfs"), ("/dev", "devtmpfs"),
    ("/dev/shm", "tmpfs"), ("/run", "tmpfs"), ("/run/user/1000", "tmpfs"),
]  # fmt: skip
STORE = "/home/u/.local/share/jupyter/timetravel"
ENVIRONMENT = f"{STORE}/environments/x"


def plan(
    *mounts: tuple[str, str],
    root: bool = False,
    tree: dict[str, list[str]] | None = None,
    writable: tuple[str, ...] = ("/home/u",),
    foreign: tuple[str, ...] = (),
    files: dict[str, bool] | None = None,
    **options: Any,
) -> Plan:
    known = {**TREE, **(tree or {})}
    host = Host(
        mounts=[MountPoint(*one) for one in [*PSEUDO, *mounts]],
        children=lambda path: known.get(path, []),
        writable=lambda path: root or any(is_within(path, one) for one in writable),
        is_root=root,
        own_user_namespace=not root,
        foreign=foreign,
        files=files or {},
    )
    settings = {"hidden": [STORE], "environment": ENVIRONMENT, "workspace": ["/home/u/proj"]}
    return make_plan(host, **{**settings, **options})


def is_within(path: str, directory: str) -> bool:
    return path == directory or path.startswith(directory.rstrip("/") + "/")


def roots(made: Plan) -> list[str]:
    return sorted(root.path for root in made.roots)


PLAIN = ["/etc", "/home", "/opt", "/root", "/usr", "/var"]


def test_a_plain_host():
    made = plan()
    assert roots(made) == PLAIN
    assert made.passes == ["/home/u/proj"]
    assert made.masked == [] and made.not_covered == {}
    home = made.root_of("/home/u/x")
    assert home.hidden == ["u/.local/share/jupyter/timetravel"] and home.base_overlay
    assert not made.root_of("/usr").base_overlay
    assert made.userxattr and not made.pivot
    assert made.root_of("/tmp/x") is None and made.root_of("/homer") is None


def test_root():
    made = plan(root=True)
    assert roots(made) == PLAIN and made.pivot and not made.userxattr
    assert all(root.writable for root in made.roots)


def test_filesystems_of_their_own():
    made = plan(("/home", "ext4"), ("/var", "xfs"), ("/data", "btrfs"), tree={"/": [*TOP, "data"]})
    assert roots(made) == sorted([*PLAIN, "/data"]) and made.not_covered == {}


def test_mounts_below_a_directory_as_root():
    made = plan(("/var/lib/docker", "ext4"), ("/var/lib/docker/a", "overlay"), root=True)
    assert roots(made) == sorted([*PLAIN, "/var/lib/docker", "/var/lib/docker/a"])
    assert made.not_covered == {}


def test_mounts_below_a_directory_as_a_user():
    made = plan(("/var/lib/docker", "ext4"))
    kept = [path for path in PLAIN if path != "/var"]
    assert roots(made) == sorted(
        [*kept, "/var/cache", "/var/lib/docker", "/var/lib/dpkg", "/var/log"]
    )
    # what nobody can write to anyway is not told
    assert made.not_covered == {}


def test_the_mount_on_top_counts():
    made = plan(("/home/u", "ext4"), ("/home/u", "nfs4"), root=True)
    assert "/home/u" not in roots(made) and "nfs4" in made.not_covered["/home/u"]
    assert plan(("/opt", "nfs"), ("/opt", "ext4")).not_covered == {}


def test_mounts_in_a_home_as_a_user():
    made = plan(("/home/u/data", "ext4"))
    assert "/home/u/data" in roots(made) and "/home/v" in roots(made)
    assert "/home/u" not in roots(made)
    assert list(made.not_covered) == ["/home/u"]
    assert "/home/u/data is mounted below it" in made.not_covered["/home/u"]
    # the workspace is no part of a root: it is the host's own there anyway
    assert made.passes == [] and "/home/u/proj" not in roots(made)


@pytest.mark.parametrize("fstype", ["nfs", "nfs4", "cifs", "fuse.sshfs", "fuseblk", "9p", "lustre"])
@pytest.mark.parametrize("root", [False, True])
def test_a_home_on_a_file_server(fstype, root):
    made = plan(("/home/u", fstype), root=root)
    assert "/home/u" not in roots(made)
    assert fstype in made.not_covered["/home/u"]
    if root:  # it would be hidden by the overlay on /home
        assert "/home" in roots(made) and "/home/u" in made.passes
    else:
        assert "/home" not in roots(made) and "/home/v" in roots(made)
    # the store is there, so it is hidden on top
    assert made.masked == [STORE]


def test_all_of_home_on_a_file_server():
    made = plan(("/home", "autofs"), ("/home/u", "nfs4"))
    assert list(made.not_covered) == ["/home"]
    assert all(not path.startswith("/home") for path in roots(made))


def test_a_mount_below_a_file_server_as_root():
    made = plan(("/var/lib", "nfs"), ("/var/lib/docker", "ext4"), root=True)
    assert "/var" in roots(made) and "/var/lib/docker" not in roots(made)
    assert made.passes == ["/home/u/proj", "/var/lib"]


def test_a_container():
    made = plan(("/", "overlay"), ("/home/u/proj", "ext4"), ("/timetravel", "ext4"), root=True,
                tree={"/": [*TOP, "timetravel"]}, hidden=["/timetravel"],
                environment="/timetravel/environments/x",
                files={"/etc/hosts": True, "/etc/resolv.conf": True, "/usr/lib/big.so": False,
                       "/home/u/proj/secret": True})  # fmt: skip
    assert roots(made) == PLAIN
    # a store on a volume of its own: neither a root, nor seen
    assert made.masked == ["/timetravel"]
    assert not any(root.base_overlay for root in made.roots)
    assert made.root_of("/etc").copies == ["hosts", "resolv.conf"]
    assert "mount of its own" in made.not_covered["/usr/lib/big.so"]
    assert made.passes == ["/home/u/proj", "/usr/lib/big.so"]


def test_files_that_are_mounts_as_root():
    made = plan(("/etc/hosts", "ext4"), files={"/etc/hosts": True}, root=True)
    assert roots(made) == PLAIN and made.root_of("/etc").copies == ["hosts"]


def test_the_store_on_a_mount_of_its_own_below_a_root():
    made = plan((STORE, "tmpfs"), root=True)
    assert STORE not in roots(made)
    assert made.root_of(STORE).hidden == ["u/.local/share/jupyter/timetravel"]


def test_the_home_is_the_workspace():
    made = plan(workspace=["/home/u"])
    assert made.passes == ["/home/u"] and "/home" in roots(made)
    # the store is passed through with it, so it is hidden on top
    assert made.masked == [STORE]
    assert made.root_of("/home").hidden == []
    assert made.root_of("/home").base_overlay


@pytest.mark.parametrize("root", [False, True])
def test_a_top_directory_is_the_workspace(root):
    made = plan(workspace=["/opt"], root=root)
    assert "/opt" not in roots(made) and made.passes == []


def test_all_there_is_is_the_workspace():
    made = plan(workspace=["/"])
    assert roots(made) == [] and made.passes == [] and made.masked == [STORE]


def test_a_workspace_in_tmp():
    made = plan(workspace=["/tmp/w"])
    assert made.passes == [] and roots(made) == PLAIN


def test_an_isolated_workspace():
    assert plan(workspace=[]).passes == []


def test_a_workspace_with_mounts_in_it():
    made = plan(("/home/u/proj/data", "nfs"), root=True)
    assert made.passes == ["/home/u/proj"] and made.not_covered == {}


def test_directories_of_the_host():
    made = plan(host_paths=["/var/cache", "/opt"])
    assert made.passes == ["/home/u/proj", "/var/cache"]
    assert "/opt" not in roots(made)


def test_hidden_within_hidden_and_within_the_workspace():
    made = plan(
        hidden=[STORE, f"{STORE}/deeper", "/home/u/proj/.jpy", "/run/user/1000/jupyter", "/opt"]
    )
    assert made.root_of("/home").hidden == ["u/.local/share/jupyter/timetravel"]
    assert made.masked == ["/home/u/proj/.jpy", "/opt", "/run/user/1000/jupyter"]
    assert "/opt" not in roots(made)


def test_the_layers_are_hidden_though_the_store_is_not():
    made = plan(hidden=[])
    assert made.root_of("/home").hidden == [ENVIRONMENT.removeprefix("/home/")]


def test_directories_of_others():
    """Whose group does not exist in the user namespace: nothing in them could be copied up."""
    made = plan(foreign=("/var/tmp", "/tmp/x", "/home/u/proj/shared"))
    assert list(made.not_covered) == ["/var/tmp"]
    assert made.passes == ["/home/u/proj", "/var/tmp"]
    assert plan(foreign=("/var/tmp",), root=True).passes == ["/home/u/proj"]


def test_files_that_must_be_owned():
    paths = ["/etc/ssh/ssh_config", "/nowhere/x"]
    assert plan(owned_copies=paths).root_of("/etc").copies == ["ssh/ssh_config"]
    assert plan(owned_copies=paths, root=True).root_of("/etc").copies == []


def test_a_name_that_begins_like_another():
    made = plan(workspace=["/home/u/pro"])
    assert made.passes == ["/home/u/pro"]
    assert made.root_of("/home/u/proj") is made.root_of("/home")


def test_the_deepest_root_counts():
    made = Plan(roots=[RootPlan("/a", True), RootPlan("/a/b", True), RootPlan("/", True)])
    assert made.root_of("/a/b/c").path == "/a/b"
    assert made.root_of("/a/bc").path == "/a"
    assert made.root_of("/x").path == "/"


def test_the_request_has_parents_first():
    made = plan(("/var/lib/docker", "ext4"), root=True)
    request = made.request("/env", {"/var": ["b", "a"], "/gone": ["c"]})
    paths = [root["path"] for root in request["roots"]]
    assert paths == sorted(paths)
    assert {r["path"]: r["stack"] for r in request["roots"] if r["stack"]} == {"/var": ["b", "a"]}


def test_mountinfo():
    text = (
        "36 35 98:0 /mnt1 /mnt\\0402/a\\134b rw,noatime master:1 - ext3 /dev/root rw\n"
        "37 35 0:5 / /x\\011y\\012z rw - fuse.sshfs me@host:/ rw\n"
        "38 35 0:6 / /\\134040 rw shared:1 master:2 unbindable - tmpfs none rw\n"
    )
    assert read_mounts(text) == [
        MountPoint("/mnt 2/a\\b", "ext3"),
        MountPoint("/x\ty\nz", "fuse.sshfs"),
        MountPoint("/\\040", "tmpfs"),
    ]
    assert read_mounts("") == []


def test_this_host():
    made = this_host(own_user_namespace=True)
    assert any(mount.path == "/" for mount in made.mounts)
    assert "proc" in made.children("/") and made.children("/nowhere") == []


NAMES = st.sampled_from(["a", "b", "cc"])
PATHS = st.lists(NAMES, min_size=1, max_size=3).map(lambda parts: "/" + "/".join(parts))
KINDS = st.sampled_from(["ext4", "nfs", "tmpfs", "proc"])


@given(
    mounts=st.lists(st.tuples(PATHS, KINDS), max_size=5),
    workspace=st.lists(PATHS, max_size=2),
    hidden=st.lists(PATHS, max_size=3),
    environment=PATHS,
    root=st.booleans(),
)
def test_on_any_host(mounts, workspace, hidden, environment, root):
    names = ["a", "b", "cc"]
    deeper = [f"/{a}/{b}" for a in names for b in names]
    everywhere = dict.fromkeys(["/", *(f"/{a}" for a in names), *deeper], names)
    made = plan(*mounts, root=root, tree=everywhere, workspace=workspace, hidden=hidden,
                environment=environment, writable=("/",))  # fmt: skip
    paths = roots(made)
    assert len(set(paths)) == len(paths)
    # the workspace is the host's own, whatever lies above it
    for path in workspace:
        above = made.root_of(path)
        assert (
            above is None or path in made.passes or any(is_within(path, one) for one in made.passes)
        )
        assert path not in paths
    # what must not be seen is not
    for path in [*hidden, environment]:
        covers = [*made.masked, *(f"{r.path}/{one}" for r in made.roots for one in r.hidden)]
        assert any(is_within(path, one) for one in covers)
    # nothing remote is overlaid
    kinds = dict(mounts)
    assert not any(kinds.get(path) in ("nfs", "proc") for path in paths)
    # in a user namespace nothing is mounted over a directory with mounts below it
    if not root:
        for path in paths:
            assert not any(is_within(m, path) and m != path for m, _ in mounts)
