"""The embedded store: SQLite through apsw, one writer thread, group commit."""
