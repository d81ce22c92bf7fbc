"""The engines behind the ports: one package per engine, each the only place that imports its client library.

Adapters do not know each other; the composition roots choose. A row, a broker's message or a client's exception never
leaves its package: values and the ports' errors do.
"""
