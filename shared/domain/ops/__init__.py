"""Values that operators configure and watch: configuration, access, limits and integrity.

`config` is the hot configuration. How long data is kept is in `retention`, and when a resource is full in `watermarks`.
Roles and keys are in `access`, the audit log in `audit`, the networks that crawls may reach in `egress`. Events are
counted for metrics in `counts`. The findings of a database check are named in `integrity`.
"""
