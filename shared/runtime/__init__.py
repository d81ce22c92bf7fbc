"""The run loops and waits that masters, workers and the command `orb` share.

`supervise` starts named tasks and child processes whose failures cannot go unnoticed. `retry` repeats a call until the
server it needs answers. `latest` stores the newest snapshot for tasks that wait for it. `registration` keeps a member
registered under a session. `config_follower` and `exclusions` apply published configuration. `pressure_monitor` watches
resources that fill up. `stalls` ends or reports a process whose event loop is blocked. `connections` limits the
connections of a listening port. `garbage` collects garbage when the event loop is idle.
"""
