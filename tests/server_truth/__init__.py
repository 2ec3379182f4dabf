"""What the server really runs: looks at real sockets, and what follows from looks and syncs."""
