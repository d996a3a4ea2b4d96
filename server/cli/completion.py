"""`stablessm completion`: installs tab completion for the user's shell."""

from __future__ import annotations

import os
from pathlib import Path

import click
from click.shell_completion import get_completion_class

from server.cli.options import Choice

SHELLS = ("bash", "zsh", "fish")
VARIABLE = "_STABLESSM_COMPLETE"  # click reads this variable in the program `stablessm`
# the script needs zsh's completion system, which a short ~/.zshrc does not load
ZSH_COMPLETION = "(( $+functions[compdef] )) || { autoload -Uz compinit; compinit; }\n"


@click.command()
@click.argument("shell", type=Choice(SHELLS), required=False)
@click.option("--print", "only_print", is_flag=True, help="Print the script instead of installing it.")
def completion(shell: str | None, only_print: bool) -> None:
    """Install tab completion for the shell SHELL. Default: your login shell."""
    shell = shell or Path(os.environ.get("SHELL", "")).name
    if shell not in SHELLS:
        raise click.ClickException(f"there is no completion for the shell {shell[:40]!r}; allowed: {', '.join(SHELLS)}")
    script = script_for(shell)
    if only_print:
        click.echo(script)
        return
    for path in install(shell, script, Path.home()):
        click.echo(f"wrote {path}")
    click.echo("Tab completion works in every new shell.")


def script_for(shell: str) -> str:
    """The shell's completion script."""
    kind = get_completion_class(shell)
    assert kind is not None
    source = kind(click.Command("stablessm"), {}, "stablessm", VARIABLE).source()
    return ZSH_COMPLETION + source if shell == "zsh" else source


def install(shell: str, script: str, home: Path) -> list[Path]:
    """Write the script and make the shell read it at each start; returns the changed files. A second call changes no other
    file."""
    if shell == "fish":
        target = home / ".config" / "fish" / "completions" / "stablessm.fish"
    else:
        target = home / ".local" / "share" / "stablessm" / f"completion.{shell}"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(script)
    if shell == "fish":  # fish reads this folder by itself
        return [target]
    start, line = home / f".{shell}rc", f". '{target}'"
    before = start.read_text() if start.exists() else ""
    if line in before.splitlines():
        return [target]
    start.write_text(before + ("" if before.endswith("\n") or not before else "\n") + line + "\n")
    return [target, start]
