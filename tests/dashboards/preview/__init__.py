"""Pictures of Grafana dashboards without a Grafana: what a person sees of them within five seconds.

Every query of a dashboard is put to a Prometheus, and each panel is drawn to scale on the grid. The one decision: it
imitates what Grafana does with a dashboard as far as it changes layout, emptiness, units or colours, and nothing more;
whether the JSON is one that Grafana understands is `tests/dashboards/schema.py`'s question.
"""
