"""A notice: a text that the supervisor changes now and then, and every process of the family reads.

   at      size  field     stored by    meaning
   0x0000     8  revision  supervisor   counts changes; odd while one is being written
   0x0008     8  length    supervisor   bytes of the text
   0x0010     …  text      supervisor   UTF-8

Who reads takes the text only where the revision was the same even number before and after it
(`words` says why that is enough). Nobody waits: the supervisor rings everybody when it is done.
"""

from shmbroker.shm.words import words_of

REVISION = 0
LENGTH = 1
TEXT_AT = 16


class Notice:
    """Both ends, over a view that all processes share."""

    def __init__(self, view: memoryview) -> None:
        self._view = view
        self._words = words_of(view)
        self._seen = 0

    @property
    def room(self) -> int:
        """Bytes that a text may have."""
        return len(self._view) - TEXT_AT

    def post(self, text: str) -> None:
        """Put up another text; ValueError if there is no room for it. To this process, and those
        that it forks from here on, it is no news."""
        raw = text.encode()
        if len(raw) > self.room:
            raise ValueError(f"a notice of {len(raw)} bytes, and there is room for {self.room}")
        words = self._words
        words[REVISION] += 1
        words[LENGTH] = len(raw)
        self._view[TEXT_AT : TEXT_AT + len(raw)] = raw
        words[REVISION] += 1
        self._seen = words[REVISION]

    def news(self) -> str | None:
        """The text, if it is another one than at the last look."""
        words = self._words
        revision = words[REVISION]
        if revision == self._seen or revision & 1:
            return None
        raw = bytes(self._view[TEXT_AT : TEXT_AT + words[LENGTH]])
        if words[REVISION] != revision:
            return None
        self._seen = revision
        return raw.decode()
