"""A cluster under faults drawn from a seed, and a judge of what came of it; shaped like etcd's robustness tests.

`traffic` keeps crawls and clients going. `plan` draws faults and their targets. `fault_injection` applies them to the
real processes of `faulted_cluster` and to the links between them (`link`). `history_collector` reads the web servers,
the clients, the database and the archives. `validation`, a pure function with tests of its own, judges the `history`.
`exploration` is the whole run:

    ./orb faults --seed N --rounds R

The moments of faults are not drawn, so a seed repeats the faults and their order, not every interleaving.
A bug that a run finds gets a row in `tests/faults/test_exploration.py`.
"""
