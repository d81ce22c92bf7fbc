"""Terraform as tests play it: the plugin protocol without a terraform binary, and its rules for plans and results."""
