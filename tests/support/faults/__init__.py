"""A cluster under faults drawn from a seed, and a judge of what came of it; shaped like etcd's robustness tests.

`traffic` keeps crawls and clients going, `plan` draws what happens to whom, `strike` does it to the real processes of
`rig` (and to the links between them, `link`), `history` gathers what web servers, clients, the database and the
archives have to say, and `validate`, a pure function with tests of its own, judges it. `explore` is the whole run:

    ./orb faults --seed N --rounds R

Processes are struck at moments that nobody draws, so a seed repeats the faults and their order, not every interleaving.
A bug that a run finds gets a row in `tests/faults/test_explore.py`.
"""
