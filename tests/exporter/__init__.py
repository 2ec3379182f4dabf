"""The exporter: settings, snapshot, and following journals."""
