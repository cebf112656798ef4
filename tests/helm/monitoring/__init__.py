"""Alerts, dashboards and scraping."""
