"""The Terraform provider `orb`: Orbweaver's resources, declared over the public REST API.

`kinds` has a module for each resource and data source: its attributes, and what differs from `lifecycle`. `planning`
decides what a plan shows, `lifecycle` creates, reads, changes and deletes, and `client` sends the requests. These
modules know nothing of Terraform's protocol. `adapter`, `protocol` and `server` connect them with the framework `tf`.
"""
