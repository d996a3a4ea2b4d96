"""The functions of W&B, for programs that begin with `import stablessm as wandb`.

They work on the run of the last `init`.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from stablessm_core.outside.arguments import Arguments, check_arguments
from stablessm_core.outside.options import RunOptions, list_options
from stablessm_core.outside.start import begin_without_model, is_rank_0_of_environment
from stablessm_core.outside.wandb_missing import missing_name, tell
from stablessm_core.outside.wandb_run import WandbRun
from stablessm_core.telemetry.limits import MAX_TAG

if TYPE_CHECKING:
    from typing import Unpack

IGNORED = frozenset({
    "allow_val_change", "anonymous", "force", "fork_from", "magic", "monitor_gym", "resume_from", "save_code", "settings",
    "sync_tensorboard", "tensorboard",
})  # fmt: skip
_run_of_init: WandbRun | None = None


@list_options
def init(
    *,
    entity: str | None = None,
    group: str | None = None,
    job_type: str | None = None,
    reinit: Any = None,
    config_exclude_keys: Any = None,
    config_include_keys: Any = None,
    **options: Unpack[RunOptions],
) -> WandbRun:
    """Begin a run as W&B's function of this name does. `stablessm.run` and the functions of this module work on it.

    group, job_type: become the tags "group:..." and "job:...". reinit: True or "finish_previous" ends an open run, "create_new"
    leaves it; otherwise the open run is returned. options: as those of `stablessm.watch`, with `id` any text (the same text in
    the same project is the same run) and with `resume` True or "auto" for "allow". entity, and other arguments of W&B's function,
    are not used. Raises TypeError or ValueError for a wrong argument.
    """
    global _run_of_init  # W&B's functions work on one run of the process
    if (open_run := run_of_init()) is not None:
        if reinit in (True, "finish_previous"):
            open_run.finish()
        elif reinit != "create_new":
            open_run.say("init returns the run that is open already; call finish first, or give reinit=True, for a new one")
            return open_run
    known, not_used = _split(options)
    if more := _as_tags(group=group, job=job_type):
        known["tags"] = [*(known.get("tags") or ()), *more]
    resume, given = known.get("resume"), known.get("id")
    known["resume"] = {None: "never", False: "never", True: "allow", "auto": "allow"}.get(resume, resume)
    if isinstance(given, str):
        known["id"] = _as_uuid(given, known.get("project") or "")
    known["config"] = _chosen(known.get("config"), config_include_keys, config_exclude_keys)
    run = begin_without_model(WandbRun(_check(known), given, live=is_rank_0_of_environment()))
    _run_of_init = run
    if entity is not None:
        not_used.insert(0, "entity")
    if not_used:
        run.say(f"init does not use {', '.join(not_used)}")
    return run


def run_of_init() -> WandbRun | None:
    """The run of the last `init`; None if it has ended."""
    return None if _run_of_init is None or _run_of_init.ended else _run_of_init


def log(values: Mapping[str, Any], step: int | None = None, commit: bool | None = None, **_: Any) -> None:
    """Report numbers in the run of `init`. Nested dictionaries become names such as a/b."""
    if (run := _open_run("log")) is not None:
        run.log(values, step, commit)


def finish(exit_code: int | None = None, quiet: bool | None = None) -> None:
    """End the run of `init`."""
    if (run := run_of_init()) is not None:
        run.finish(exit_code, quiet)


def login(*_: Any, **__: Any) -> bool:
    """True: no account is needed."""
    tell("login is not needed: STABLESSM_URL and STABLESSM_TOKEN name the server, and without them runs go into files")
    return True


def define_metric(name: str, *_: Any, **__: Any) -> None:
    """Not used, see `WandbRun.define_metric`."""
    if (run := _open_run("define_metric")) is not None:
        run.define_metric(name)


def alert(title: str, text: str = "", level: Any = "warning", wait_duration: Any = None) -> None:
    """Raise an alert on the page of the run of `init`."""
    if (run := _open_run("alert")) is not None:
        run.alert(title, text, level, wait_duration)


def unwatch(models: Any = None) -> None:
    """Record no more eigenvalues in the run of `init`."""
    if (run := run_of_init()) is not None:
        run.unwatch(models)


class Error(Exception):
    """Stands for W&B's exceptions, so that programs can name them. Never raised."""


def find_name(name: str) -> Any:
    """What `stablessm.NAME` is, for the names of W&B. Raises AttributeError for other names."""
    if name in _NAMES:
        return _NAMES[name]
    if name == "run":
        return run_of_init()
    if name in ("config", "summary"):
        if (run := run_of_init()) is None:
            raise AttributeError(f"stablessm.{name} exists after stablessm.init()")
        return getattr(run, name)
    if name == "Run":
        return WandbRun
    return missing_name(name, "module 'stablessm'")


def _open_run(function: str) -> WandbRun | None:
    run = run_of_init()
    if run is None:
        tell(f"{function} is called without a run; call stablessm.init() first")
    return run


def _split(options: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The options that StableSSM knows, and the names of W&B's that it does not use."""
    return {k: v for k, v in options.items() if k not in IGNORED}, sorted(
        k for k, v in options.items() if k in IGNORED and v is not None and v is not False
    )


def _as_tags(**named: str | None) -> list[str]:
    return [f"{kind}:{value}"[:MAX_TAG] for kind, value in named.items() if value]


def _as_uuid(given: str, project: str) -> str:
    try:
        return str(uuid.UUID(given))
    except ValueError:
        return str(uuid.uuid5(uuid.NAMESPACE_URL, f"stablessm:{project}/{given}"))


def _chosen(config: Any, include: Any, exclude: Any) -> Any:
    if config is None or not (include or exclude):
        return config
    values = config if isinstance(config, Mapping) else vars(config)
    return {k: v for k, v in values.items() if (not include or k in include) and k not in (exclude or ())}


def _check(options: Any) -> Arguments:
    """The checked options. Offline, as in W&B, resume is not used: the run continues when its file is sent."""
    if options["resume"] not in ("allow", "must") or options.get("from_step") is not None:
        return check_arguments(**options)
    offline = check_arguments(**options | {"resume": "never"})
    return check_arguments(**options) if offline.mode == "online" else offline


_NAMES: dict[str, Any] = {
    **{one.__name__: one for one in (init, log, finish, login, define_metric, alert, unwatch, Error)},
    "AlertLevel": SimpleNamespace(INFO="INFO", WARN="WARN", ERROR="ERROR"),
    "errors": SimpleNamespace(Error=Error, CommError=Error, UsageError=Error),
    "util": SimpleNamespace(generate_id=lambda length=8: uuid.uuid4().hex[:length]),
}
