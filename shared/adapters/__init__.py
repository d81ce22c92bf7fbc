"""The adapters: implementations of the ports (shared/ports), one package for each engine or type of resource.

Only the package of an engine imports its client library. Adapters do not import each other. The entry points of
masters, workers and the command line choose the adapters. A package returns only values and raises only the ports'
errors. No SQL row, broker message or client exception leaves it.
"""
