"""One self-contained HTML page of a load: figures, and charts as inline SVG."""
