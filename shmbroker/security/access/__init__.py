"""What each API asks of its client's rights, before and after who answers it. Pure."""
