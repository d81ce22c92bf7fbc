"""Metrics of a master.

- `metrics.MasterMetrics` describes every metric and reads it when Prometheus scrapes.
- `sampler.StatsSampler` reads the numbers of SQL and the broker at an interval, so that a scrape costs no query.
- `traffic` measures HTTP requests by the template of their route.
"""
