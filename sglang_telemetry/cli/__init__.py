"""The command line ``sglang-telemetry``; every command starts without torch."""
