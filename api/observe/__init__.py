"""Metrics of a master.

- `metrics.MasterMetrics` describes every metric and reads it when Prometheus scrapes.
- `sampler.StatsSampler` reads numbers from SQL and the broker every few seconds, so that a scrape costs no query.
- `traffic` measures HTTP requests by the template of their route.
"""
