"""The run loops and waits that masters, workers and the command share.

`supervise` starts named tasks and child processes that cannot fail unseen. `retry` repeats a call until the server it
needs answers. `latest` hands the newest snapshot to waiters. `registration` keeps a member registered under a session.
`pressure_monitor` watches resources that fill up. `stalls` ends or reports a process whose event loop is blocked.
`connections` bounds the connections of a listening port. `garbage` collects garbage when the event loop is idle.
"""
