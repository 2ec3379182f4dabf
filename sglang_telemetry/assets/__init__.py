"""The rules, runbooks, dashboards and the Alertmanager example as a site wants them: thresholds, selectors, links."""
