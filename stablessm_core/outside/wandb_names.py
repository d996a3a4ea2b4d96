"""The functions of W&B, for programs that begin with `import stablessm as wandb`.

They work on the run of the last `init`.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Mapping
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from stablessm_core.outside.arguments import Arguments, check_arguments
from stablessm_core.outside.options import RunOptions, list_options
from stablessm_core.outside.start import begin_without_model, is_rank_0_of_environment
from stablessm_core.outside.wandb_config import Config, as_entries
from stablessm_core.outside.wandb_missing import Error, Names, Nothing, missing_name, tell, write
from stablessm_core.outside.wandb_run import WandbRun
from stablessm_core.telemetry.limits import MAX_TAG, MAX_TAGS

if TYPE_CHECKING:
    from typing import Unpack

IGNORED = frozenset({
    "allow_val_change", "anonymous", "force", "fork_from", "magic", "monitor_gym", "resume_from", "save_code", "settings",
})  # fmt: skip
TENSORBOARD = frozenset({"sync_tensorboard", "tensorboard"})
NO_TENSORBOARD = (
    "nothing is recorded from TensorBoard: log the values with run.log, or send the folder of its event files with "
    "`stablessm import --follow DIR --project NAME`"
)
MODES = {"dryrun": "offline", "shared": "online"}  # W&B's other names
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
    the same project is the same run), with `resume` True or "auto" for "allow", and with tags and config that may need changes
    to be stored, which are told. What the program set in `stablessm.config` before belongs to config. entity, and other arguments
    of W&B's function, are not used. Raises TypeError or ValueError for another wrong argument.
    """
    global _run_of_init  # W&B's functions work on one run of the process
    if (open_run := run_of_init()) is not None:
        if reinit in (True, "finish_previous"):
            open_run.finish()
        elif reinit != "create_new":
            open_run.say("init returns the run that is open already; call finish first, or give reinit=True, for a new one")
            return open_run
    known, not_used = _split(options)
    if any(options.get(name) for name in TENSORBOARD):
        tell(NO_TENSORBOARD)
    known["tags"] = _storable_tags(known.get("tags"), {"group": group, "job": job_type})
    resume, given = known.get("resume"), known.get("id")
    known["resume"] = {None: "never", False: "never", True: "allow", "auto": "allow"}.get(resume, resume)
    known["mode"] = MODES.get(known.get("mode") or "", known.get("mode"))
    if isinstance(given, str):
        known["id"] = _as_uuid(given, known.get("project") or "")
    config = _chosen(known.get("config"), config_include_keys, config_exclude_keys)
    arguments = _check(known | {"config": config})
    _waiting["config"]._values.clear()
    run = WandbRun(
        arguments, given, live=is_rank_0_of_environment(), config=config, group=str(group or ""), job_type=str(job_type or "")
    )
    _run_of_init = begin_without_model(run)
    run.summary.update(_waiting["summary"])
    _waiting["summary"]._values.clear()
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


def find_name(name: str) -> Any:
    """What `stablessm.NAME` is, for the names of W&B; a stand-in for a name that is not known. Raises AttributeError for a name
    that begins with _."""
    if name in _NAMES:
        return _NAMES[name]
    if name == "run":
        return run_of_init()
    if name in _waiting:
        run = run_of_init()
        return _waiting[name] if run is None else getattr(run, name)
    return missing_name(name, "module 'stablessm'", [*_NAMES, *_waiting, "watch", "log_only", "eigenvalues"])


def set_config(config: Any) -> None:
    """What `stablessm.config = {...}` does: the entries join the configuration of the run, or of the next run."""
    find_name("config").update(config)


def _tells_waiting(name: str) -> Config:
    def tell_waiting(values: dict[str, Any]) -> None:
        if values:
            tell(f"stablessm.{name} was set before stablessm.init; the values belong to the run of the next init")

    return Config({}, tell_waiting)


_waiting = {name: _tells_waiting(name) for name in ("config", "summary")}  # what programs set before init


def _open_run(function: str) -> WandbRun | None:
    run = run_of_init()
    if run is None:
        tell(f"{function} is called without a run; call stablessm.init() first")
    return run


def _split(options: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The options that StableSSM knows, and the names of W&B's that it does not use."""
    return {k: v for k, v in options.items() if k not in IGNORED | TENSORBOARD}, sorted(
        k for k, v in options.items() if k in IGNORED and v is not None and v is not False
    )


def _storable_tags(tags: Any, named: Mapping[str, Any]) -> list[str]:
    """The tags as the server takes them. One that is too long is cut, with a digest, so that two tags do not become one."""
    given = [tags] if isinstance(tags, str) else list(tags or ())
    # group and job come first, because they find the run
    found = [f"{kind}:{value}" for kind, value in named.items() if value] + [str(tag) for tag in given if str(tag)]
    for i, tag in enumerate(found):
        if len(tag) > MAX_TAG:
            found[i] = f"{tag[: MAX_TAG - 9]}~{hashlib.sha256(tag.encode(errors='replace')).hexdigest()[:8]}"
            tell(f"the tag {tag[:200]!r} has {len(tag)} characters; allowed: at most {MAX_TAG}; it becomes {found[i]!r}")
    found = list(dict.fromkeys(found))
    if len(found) > MAX_TAGS:
        tell(f"init has {len(found)} tags, with group and job_type; allowed: at most {MAX_TAGS}; the others are left out")
    return found[:MAX_TAGS]


def _as_uuid(given: str, project: str) -> str:
    try:
        return str(uuid.UUID(given))
    except ValueError:
        return str(uuid.uuid5(uuid.NAMESPACE_URL, f"stablessm:{project}/{given}"))


def _chosen(config: Any, include: Any, exclude: Any) -> dict[str, Any]:
    """The configuration of `init` with what the program set before. One of another type than a dictionary is a sentence."""
    try:
        values = as_entries(config)
    except TypeError as error:
        tell(f"{error}; init goes on without it")
        values = {}
    values = {**_waiting["config"], **values}
    return {k: v for k, v in values.items() if (not include or k in include) and k not in (exclude or ())}


def _check(options: Any) -> Arguments:
    """The checked options. Offline, as in W&B, resume is not used: the run continues when its file is sent."""
    if options["resume"] not in ("allow", "must") or options.get("from_step") is not None:
        return check_arguments(**options, strict_config=False)
    offline = check_arguments(**options | {"resume": "never"}, strict_config=False)
    return check_arguments(**options, strict_config=False) if offline.mode == "online" else offline


def termlog(string: Any = "", newline: bool = True, repeat: bool = True, **_: Any) -> None:
    """Write a line on the terminal. repeat: False writes the same line once."""
    if repeat:
        write(f"stablessm: {string}", "\n" if newline else "")
    else:
        tell(str(string))


class UsageError(Error):
    """Stands for W&B's exception of this name."""


class CommError(Error):
    """Stands for W&B's exception of this name."""


def _no_tensorboard(*_: Any, **__: Any) -> Any:
    tell(NO_TENSORBOARD)
    return Nothing("tensorboard")


_EXCEPTIONS: dict[str, Any] = {"Error": Error, "UsageError": UsageError, "CommError": CommError}
_TERM: dict[str, Any] = {"termlog": termlog, "termwarn": termlog, "termerror": termlog}
_TENSORBOARD: dict[str, Any] = dict.fromkeys(("patch", "log", "WandbHook", "unpatch", "reset_state"), _no_tensorboard)
_NAMES: dict[str, Any] = {
    **{one.__name__: one for one in (init, log, finish, login, define_metric, alert, unwatch)},
    **_EXCEPTIONS,
    **_TERM,
    "join": finish,
    "Run": WandbRun,
    "Config": Config,
    "AlertLevel": SimpleNamespace(INFO="INFO", WARN="WARN", ERROR="ERROR"),
    "errors": Names("errors", {**_EXCEPTIONS, "term": Names("errors.term", _TERM, find_name)}, find_name),
    "util": Names("util", {"generate_id": lambda length=8: uuid.uuid4().hex[:length]}, find_name),
    "tensorboard": Names("tensorboard", _TENSORBOARD, find_name),
    "data_types": Names("data_types", {}, find_name, deep=True),
    "env": Names("env", {}, find_name),
}
_NAMES |= {
    name: Names(name, _NAMES, find_name, deep=True)
    for name in ("sdk", "wandb_sdk", "integration", "apis", "keras", "sklearn", "xgboost", "lightgbm", "catboost", "gym", "old")
}
