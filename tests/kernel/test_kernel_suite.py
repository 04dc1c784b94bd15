"""The suite that Jupyter has for kernels, run on this one."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import jupyter_kernel_test
import pytest
from jupyter_kernel_test.msgspec_v5 import validate_message

from tests.waiting import PATIENCE

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="class", autouse=True)
def kernelspec(tmp_path_factory):
    """The kernel of this checkout, found by name."""
    base = tmp_path_factory.mktemp("suite")
    directory = base / "data" / "kernels" / "tt-suite"
    directory.mkdir(parents=True)
    argv = [sys.executable, "-m", "kernel_runtime", "-f", "{connection_file}"]
    argv.append("--Supervisor.files=False")  # the suite runs where this process happens to be
    spec = {"argv": argv, "display_name": "tt", "language": "python", "interrupt_mode": "message"}
    (directory / "kernel.json").write_text(json.dumps(spec))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JUPYTER_PATH", str(base / "data"))
        patch.setenv("PYTHONPATH", str(ROOT))
        patch.setenv("JUPYTER_TIMETRAVEL_STORE", str(base / "store"))
        patch.setenv("IPYTHONDIR", str(base / "ipython"))
        patch.setattr(jupyter_kernel_test, "TIMEOUT", PATIENCE)  # of 15 seconds
        yield


class TestTimeTravelKernel(jupyter_kernel_test.KernelTests):
    """Each attribute switches on the tests of one ability."""

    kernel_name = "tt-suite"
    language_name = "python"
    file_extension = ".py"
    code_hello_world = "print('hello, world')"
    code_stderr = "import sys; print('test', file=sys.stderr)"
    completion_samples = [{"text": "zi", "matches": {"zip"}}]  # noqa: RUF012
    complete_code_samples = ["1", "print('hello, world')"]  # noqa: RUF012
    incomplete_code_samples = ['print("""hello']  # noqa: RUF012
    invalid_code_samples = ["import = 7q"]  # noqa: RUF012
    code_page_something = "zip?"
    code_generate_error = "raise"
    code_execute_result = [  # noqa: RUF012
        {"code": "1+2+3", "result": "6"},
        {"code": "[n*n for n in range(1, 4)]", "result": "[1, 4, 9]"},
    ]
    code_display_data = [  # noqa: RUF012
        {
            "code": "from IPython.display import HTML, display; display(HTML('<b>test</b>'))",
            "mime": "text/html",
        }
    ]
    code_history_pattern = "1?2*"
    supported_history_operations = ("tail", "search")
    code_inspect_sample = "zip"

    def execute_helper(
        self,
        code: str,
        timeout: float = PATIENCE,
        silent: bool = False,
        store_history: bool = True,
        stop_on_error: bool = True,
    ) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """As the suite's own, which gives each message on IOPub a tenth of a second to come."""
        asked = self.kc.execute(
            code, silent=silent, store_history=store_history, stop_on_error=stop_on_error
        )
        reply = self.get_non_kernel_info_reply(timeout=timeout)
        validate_message(reply, "execute_reply", asked)
        told: list[dict[str, Any]] = []
        while not told or told[-1]["content"].get("execution_state") != "idle":
            message = self.kc.get_iopub_msg(timeout=timeout)
            if message["parent_header"].get("msg_id") == asked:
                validate_message(message, message["msg_type"], asked)
                told.append(message)
        assert told[0]["content"]["execution_state"] == "busy"
        inputs = [one["content"]["code"] for one in told if one["msg_type"] == "execute_input"]
        assert inputs == [code] * (not silent)
        return reply, [one for one in told if one["msg_type"] not in ("status", "execute_input")]

    def history_helper(
        self, execute_first: Any, timeout: float | None = PATIENCE, **histargs: Any
    ) -> dict[str, Any]:
        return super().history_helper(execute_first, timeout, **histargs)

    code_clear_output = "from IPython.display import clear_output; clear_output()"
