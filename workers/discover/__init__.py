"""What finds pages that no link leads to: sitemaps and feeds.

- `listing`: reads the entries of a sitemap or feed in batches
- `xml_listing`: the parser of those that are XML
- `reading`: their entries, by scope and location rules
- `host_sitemaps`: the sitemaps that a robots.txt names, or that may be there
"""
