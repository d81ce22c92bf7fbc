"""Items: the values that a crawl's rules extract from a page.

Rules find elements by CSS selectors, which need the page's tree. The tree of a hostile page can take minutes or
gigabytes (docs/decisions/0006). So a separate process builds the trees (`process`). It gets only the page, and can
neither open sockets nor run programs (`sandbox`). If a page exceeds the limits, the process ends, and the worker
continues without this page's items.

`rules` runs in that process and does no I/O. `extractor` is the worker's side. The process is started for the first
page to which a rule applies, so a crawl without rules does not pay for it.
"""
