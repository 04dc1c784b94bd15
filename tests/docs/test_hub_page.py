"""The settings of docs/hub.md for Kubernetes, as the spawner itself understands them."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from traitlets.config import Config

PAGE = Path(__file__).parents[2] / "docs" / "hub.md"
NOWHERE = """
apiVersion: v1
kind: Config
current-context: none
contexts: [{name: none, context: {cluster: none, user: none}}]
clusters: [{name: none, cluster: {server: "https://127.0.0.1:1"}}]
users: [{name: none, user: {token: none}}]
"""


@pytest.fixture
def settings() -> dict[str, Any]:
    [block] = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    found: dict[str, Any] = yaml.safe_load(block)["hub"]["config"]["KubeSpawner"]
    return found


async def test_what_a_pod_is_given(
    settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config").write_text(NOWHERE)  # it wants to know a cluster; nobody asks it
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    kubespawner = pytest.importorskip("kubespawner")
    from jupyterhub.objects import Hub
    from jupyterhub.orm import Spawner
    from kubernetes_asyncio.client import ApiClient

    unknown = set(settings) - set(kubespawner.KubeSpawner.class_trait_names(config=True))
    assert not unknown
    user = SimpleNamespace(
        name="one", id=1, url="/user/one/", escaped_name="one", server=None, settings={}, groups=[]
    )
    spawner = kubespawner.KubeSpawner(
        config=Config(KubeSpawner=settings),
        _mock=True,
        user=user,
        hub=Hub(),
        api_token="none",
        cmd=["jupyterhub-singleuser"],
        orm_spawner=Spawner(name=""),
    )
    made = await spawner.get_pod_manifest()
    async with ApiClient() as client:
        pod = client.sanitize_for_serialization(made)["spec"]
        claim = client.sanitize_for_serialization(spawner.get_pvc_manifest())
    assert pod["hostUsers"] is False
    assert pod["securityContext"] == {"fsGroup": 100}, "the volume's group, and no user of ours"
    [container] = pod["containers"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "procMount": "Unmasked",
        "seccompProfile": {"type": "Localhost", "localhostProfile": "profiles/timetravel.json"},
    }
    [volume] = pod["volumes"]
    [mount] = container["volumeMounts"]
    assert volume["name"] == mount["name"] and mount["mountPath"] == "/home/jovyan"
    assert volume["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"] == "home-one"
    assert claim["spec"]["resources"]["requests"]["storage"] == "10Gi"
