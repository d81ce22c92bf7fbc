"""The adapters: implementations of the ports (shared/ports).

A package for each engine alone imports its client library. An engine is SQL, NATS, etcd, or what one machine offers
(`local`, `objects`). Adapters do not import each other. The composition roots choose the adapters. Only values and the
ports' errors leave a package: no SQL row, broker message or client exception does.
"""
