"""The crawl spec: what a user declares, and what follows from it.

`spec` has every field with its default and bound. `spec_parse` reads what a user wrote, and reports every problem.
`spec_rules` checks rules between fields and refuses what a spec must not contain. `spec_diff` compares revisions.
`state` has the verbs allowed in each state. `scope`, `patterns` and `traps` decide whether a URL belongs to the crawl.
`host_specs` applies overrides. `scope_change` and `wider_scope` decide what a changed scope does to URLs and links
found before. `item_rules` and `selectors` define and check the rules that extract items.
"""
