"""Who may do what over the API.

- `rights` is the table of roles: the only place that says which role a request needs.
"""
