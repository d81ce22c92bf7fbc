"""Items: what a crawl's rules take out of a page.

Rules find elements by CSS selectors, which needs the page's tree; and a page can be made so that building its tree
takes minutes or gigabytes, which no look at its bytes tells (docs/decisions/0006). So trees are built in a process of
their own (`process`), which holds nothing but the page, has given up sockets and programs (`confined`), and which the
kernel ends when a page takes more than its share; the worker then goes on without this page's items. `rules` is what
runs there, pure; `extractor` is the worker's side.

A crawl without rules pays nothing: the process is started for the first page that some rule is about.
"""
