"""Groups of settings (see ``settings``) of libraries: what differs from their defaults."""

from __future__ import annotations

import importlib
import sys
import warnings
from typing import Any


def _library(name: str) -> Any:
    """Untyped: most of what is read here is private, or differs between versions."""
    return importlib.import_module(name)


# -- pandas, polars, scikit-learn -----------------------------------------------------------


def pandas_options() -> dict[str, Any] | None:
    config = _library("pandas._config.config")
    found = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, option in config._registered_options.items():
            if name in config._deprecated_options:
                continue
            value = config.get_option(name)
            if value is not option.defval and value != option.defval:
                found[name] = value
    return found or None


def set_pandas_options(value: dict[str, Any]) -> list[str]:
    pandas = _library("pandas")
    failed = []
    for name, each in value.items():
        try:
            pandas.set_option(name, each)
        except Exception as error:
            failed.append(f"the option {name} cannot be set: {error}")
    return failed


def polars_options() -> str:
    text: str = _library("polars").Config.save()
    return text


def set_polars_options(value: str) -> None:
    _library("polars").Config.load(value)


def sklearn_options() -> dict[str, Any]:
    return dict(_library("sklearn").get_config())


def set_sklearn_options(value: dict[str, Any]) -> None:
    known = _library("sklearn").get_config()
    _library("sklearn").set_config(**{k: v for k, v in value.items() if k in known})


# -- duckdb ---------------------------------------------------------------------------------


def duckdb_connection() -> Any:
    """The connection that ``duckdb.sql`` uses, if it holds anything."""
    connection = _library("duckdb").default_connection()
    tables = connection.execute(
        "SELECT (SELECT count(*) FROM duckdb_tables() WHERE NOT internal)"
        " + (SELECT count(*) FROM duckdb_views() WHERE NOT internal)"
    ).fetchone()
    return connection if tables[0] else None


def set_duckdb_connection(value: Any) -> None:
    _library("duckdb").set_default_connection(value)


# -- numpy ----------------------------------------------------------------------------------


def numpy_options() -> dict[str, Any]:
    numpy = _library("numpy")
    return {"print": numpy.get_printoptions(), "errors": numpy.geterr()}


def set_numpy_options(value: dict[str, Any]) -> None:
    numpy = _library("numpy")
    known = numpy.get_printoptions()
    numpy.set_printoptions(
        **{k: v for k, v in value["print"].items() if k in known and known[k] != v}
    )
    numpy.seterr(**value["errors"])


def numpy_randomness() -> Any:
    return _library("numpy").random.get_state(legacy=False)


def set_numpy_randomness(value: Any) -> None:
    _library("numpy").random.set_state(value)


# -- torch ----------------------------------------------------------------------------------


def torch_options() -> dict[str, Any]:
    torch = _library("torch")
    return {
        "dtype": torch.get_default_dtype(),
        "gradients": torch.is_grad_enabled(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
    }


def set_torch_options(value: dict[str, Any]) -> None:
    torch = _library("torch")
    torch.set_default_dtype(value["dtype"])
    torch.set_grad_enabled(value["gradients"])
    torch.use_deterministic_algorithms(value["deterministic"])


def torch_randomness() -> dict[str, Any]:
    """The state as bytes. What a GPU's generators hold cannot be read in a copy of the process."""
    torch = _library("torch")
    has_gpu = "torch.cuda" in sys.modules and torch.cuda.is_initialized()
    return {"cpu": torch.get_rng_state().numpy().tobytes(), "has_gpu": has_gpu}


def set_torch_randomness(value: dict[str, Any]) -> list[str] | None:
    torch = _library("torch")
    torch.set_rng_state(torch.frombuffer(bytearray(value["cpu"]), dtype=torch.uint8))
    if value["has_gpu"]:
        return ["the random state of the GPU's generators is not kept: seed them in a cell"]
    return None


# -- matplotlib -----------------------------------------------------------------------------


def plot_options() -> dict[str, Any]:
    """Read past the dictionary's own methods: asking for the backend chooses one."""
    parameters = _library("matplotlib").rcParams
    found = {name: dict.__getitem__(parameters, name) for name in dict.keys(parameters)}
    backend = found.pop("backend", None)
    known = {"parameters": {k: v for k, v in found.items() if not k.startswith("_internal.")}}
    return {**known, "backend": backend if isinstance(backend, str) else None}


def set_plot_options(value: dict[str, Any]) -> list[str]:
    matplotlib = _library("matplotlib")
    failed = []
    if value["backend"] is not None:
        try:
            matplotlib.use(value["backend"])
        except Exception as error:
            failed.append(f"the backend {value['backend']} cannot be used: {error}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, each in value["parameters"].items():
            if name in matplotlib.rcParams:
                dict.__setitem__(matplotlib.rcParams, name, each)
    return failed
