"""One module for each API that the active controller answers by a decision."""
