"""The adapters: implementations of the ports (shared/ports), one package for each engine or kind of resource.

Only a package of an engine imports its client library. Adapters do not import each other. The entry points of masters,
workers and the command line choose among them. Only values and the ports' errors leave a package: no SQL row, broker
message or client exception does.
"""
