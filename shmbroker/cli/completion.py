"""`shmbroker completion`: what makes a shell complete our words."""

import click
from click.shell_completion import get_completion_class

VARIABLE = "_SHMBROKER_COMPLETE"


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def command(shell: str) -> None:
    """Print the completion script of a shell.

    \b
    source <(shmbroker completion bash)                              in ~/.bashrc
    shmbroker completion fish > ~/.config/fish/completions/shmbroker.fish
    """
    from shmbroker.cli.commands import main

    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(main, {}, "shmbroker", VARIABLE).source())
