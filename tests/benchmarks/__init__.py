"""Measurements, each a module with its own command line (`orb bench NAME`); ratios within one run count."""
