"""NATS JetStream: visits to workers, reports to owners, questions and answers, and the bundled server."""
