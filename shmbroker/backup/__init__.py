"""Backups of a running family, and restoring them: what one holds, taking it, putting it back."""
