"""The tests, in tiers: each is named for the promise or the race that it defends.

`unit` is pure; `contract` holds every adapter of a port to the same promises; `integration` joins parts on real
engines; `e2e` runs the command; `faults` kills and judges; `conformance` compares with outside specifications;
`migration` runs old code on new schemas; `benchmarks` measure; `support` is what they share.
"""
