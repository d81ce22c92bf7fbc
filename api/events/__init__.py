"""Events: changes in the cluster, for `/v1/events` and for programs.

- `recorder.EventRecorder` runs on the leader. It compares the state of crawls and members with the state that it
  recorded last, by the pure functions of `diff`, and publishes the difference.
- `publisher.EventPublisher` sends events to the stream in the background: publishing never fails its caller.
- `reader.EventCursor` reads the stream from any position, once and in order, and reports gaps.
"""
