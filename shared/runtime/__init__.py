"""The run loops and waits of masters, workers and the command.

`supervise` starts named tasks and child processes that cannot fail unseen. `retry` repeats a call until its engine
answers. `latest` hands the newest snapshot to waiters. `registration` keeps a member registered under a session.
`pressure_monitor` watches resources that fill up. `stalls` ends or reports a process whose event loop stands still.
`connections` bounds the connections of a listening port.
"""
