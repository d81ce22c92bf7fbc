"""Finds pages to which no link leads: by sitemaps and feeds.

- `listing`: reads the entries of a sitemap or feed in batches
- `xml_listing`: the parser for XML sitemaps and feeds
- `reading`: reads an answer as a page, sitemap or feed, and drops entries that the scope or the location rules exclude
- `host_sitemaps`: the sitemaps that a robots.txt names, or the well-known /sitemap.xml
"""
