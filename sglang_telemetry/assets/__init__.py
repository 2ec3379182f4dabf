"""The rule files, runbooks and the Alertmanager example as a site wants them: thresholds, selectors, links, format."""
