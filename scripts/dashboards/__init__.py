"""The chart's Grafana dashboards: what they show, and their conversion to Grafana's JSON."""
