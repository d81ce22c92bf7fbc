"""The Terraform provider `orb`: Orbweaver's resources, declared over the public REST API.

`kinds` has a module for each resource and data source, with its attributes and what differs from `lifecycle`.
`lifecycle` plans, creates, reads, changes and deletes resources, and `client` sends the requests. These modules do not
depend on Terraform's protocol. `adapter`, `protocol` and `server` connect them with the framework `tf`.
"""
