"""Tests of the Grafana dashboards: their shape, by the types that Grafana publishes."""
