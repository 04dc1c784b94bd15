"""Requests made up from the OpenAPI document (schemathesis), to a real server with a real kernel.

Bounded and always the same: so many for each operation, from a fixed seed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from tests.conftest import PATIENCE
from tests.server.server_world import Kernel, Server

schemathesis = pytest.importorskip("schemathesis")

from schemathesis import GenerationMode  # noqa: E402
from schemathesis.checks import not_a_server_error  # noqa: E402
from schemathesis.specs.openapi.checks import (  # noqa: E402
    content_type_conformance,
    negative_data_rejection,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)

from jupyter_timetravel.server.openapi import document  # noqa: E402

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    negative_data_rejection,
    unsupported_method,
]
MANY, FEW = 12, 4
SLOW = {"verify", "replay", "reset", "resume", "restore", "export", "group_restore"}
"""Operations that start processes, or stop them."""
OPERATIONS = sorted(
    operation["operationId"]
    for item in document("")["paths"].values()
    for verb, operation in item.items()
    if verb != "parameters"
)


@pytest.fixture(scope="module")
def kernel(server: Server) -> Iterator[Kernel]:
    made = server.start("fuzz/a.ipynb")
    for code in ("x = 1", "y = [x]", "open('f', 'w').write('f');"):
        made.run(code)
    with server.as_user() as http:
        asked = {"group": "fuzz", "members": [made.id]}
        assert http.post("/groups", json=asked).status_code == 201
    yield made
    server.end(made)


@pytest.fixture(scope="module")
def schema(server: Server) -> Any:
    headers = {"Authorization": "token owner"}
    return schemathesis.openapi.from_url(f"{server.api}/openapi.json", headers=headers)


@pytest.mark.parametrize("mode", list(GenerationMode), ids=lambda mode: mode.value)
@pytest.mark.parametrize("id", OPERATIONS)
def test_no_request_is_too_much(
    server: Server, kernel: Kernel, schema: Any, id: str, mode: GenerationMode
) -> None:
    operation = schema.find_operation_by_id(id)

    @seed(20240229)
    @settings(
        max_examples=FEW if id in SLOW else MANY,
        phases=[Phase.generate],
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(
        case=operation.as_strategy(generation_mode=mode),
        made_up=st.integers(0, 3),
        checkpoint=st.sampled_from(["-1", "0", "1", "2", "99"]),
    )
    def ask(case: Any, made_up: int, checkpoint: str) -> None:
        if "session" in case.path_parameters and made_up:  # else there would be none, each time
            case.path_parameters["session"] = kernel.id
        if "group" in case.path_parameters and made_up:
            case.path_parameters["group"] = "fuzz"
        if "checkpoint" in case.path_parameters and made_up > 1:
            case.path_parameters["checkpoint"] = checkpoint
        checks = list(CHECKS)
        if not _is_wrong(case):  # what was wrong of it has been put right above
            checks.remove(negative_data_rejection)
        # all that the requests before have left is verified in one of them
        case.call_and_validate(
            base_url=server.api,
            headers={"Authorization": "token owner"},
            checks=checks,
            timeout=2 * PATIENCE,
        )

    ask()
    # the session is there, and works
    assert kernel.run("print(1 + 1)").splitlines()[-1] == "2"


def _is_wrong(case: Any) -> bool:
    """Whether its query or its body is of a form that the document does not allow."""
    parts = case.meta.components
    return any(
        part.value in ("query", "body") and told.mode is GenerationMode.NEGATIVE
        for part, told in parts.items()
    )
