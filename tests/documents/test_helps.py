"""What `--help` says: each option has a sentence, which says what it is or does."""

from collections.abc import Iterator

import click
import pytest

from shmbroker.cli.commands import main

FRAGMENT = ("Of ", "What ", "A ", "An ", "The columns")
"""Words with which only a part of a sentence begins, or one that says less than a verb would."""


def commands_of(command: click.Command, name: str) -> Iterator[tuple[str, click.Command]]:
    yield name, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for each in command.list_commands(context):
            found = command.get_command(context, each)
            assert found is not None
            yield from commands_of(found, f"{name} {each}")


@pytest.mark.parametrize("name, command", list(commands_of(main, "shmbroker")))
def test_an_option_has_a_sentence(name, command):
    assert command.help
    for option in command.params:
        if isinstance(option, click.Option):
            assert option.help, option.opts
            assert not option.help.startswith(FRAGMENT), (option.opts, option.help)
