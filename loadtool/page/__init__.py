"""Self-contained HTML page of a load: tables, and charts as inline SVG."""
