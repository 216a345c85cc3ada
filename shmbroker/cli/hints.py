"""What was meant: the nearest of the known words, for a word that is none of them."""

from collections.abc import Iterable

import click


def meant(word: str, known: Iterable[str], count: int = 3) -> str:
    """ "did you mean A or B?", or "" where nothing is near."""
    import difflib

    close = difflib.get_close_matches(word, list(known), count)
    return f"did you mean {' or '.join(close)}?" if close else ""


class HintingGroup(click.Group):
    """A group of commands that says which one was meant; click itself does so since 8.4 only, and
    not where commands are imported when named."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        word = args[0]
        is_typed = not (ctx.resilient_parsing or word.startswith("-"))
        if is_typed and self.get_command(ctx, word) is None:
            from difflib import get_close_matches

            known = self.list_commands(ctx)
            close = get_close_matches(word, known, 1)
            hint = f"Did you mean {close[0]!r}?" if close else f"There are {', '.join(known)}."
            ctx.fail(f"No such command {word!r}. {hint}")
        return super().resolve_command(ctx, args)
