"""Where events go: one file a sink, one third-party library a file."""
