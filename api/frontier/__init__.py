"""The owner of a partition: keep the state of its URLs and hosts, and dispatch polite work.

The life of a URL in its partition:

- **Discovery.** A seed or an outlink arrives as a discovery and waits in the stream until the owner **ingests** it. One
  transaction inserts new URLs, counts known ones, and excludes URLs that the scope, depth or budget forbids. The
  transaction begins with the fence. This condition fails if another owner has taken over, and then nothing is written.
- **Queued.** The URL is now a row in SQL. Memory has only the heap of hosts that are due.
- **URL shard.** When its host is due and has a free slot, the URL is leased together with other URLs of its
  queue. One transaction writes the lease row and the counters. Then the message is published.
- **Grant.** A worker asks to `begin`. The owner first applies all outcomes that were published up to that moment, and
  then **grants** time to the worker. So no URL is granted to two workers at once, or fetched twice because a report was
  late.
- **Outcome.** Outcomes arrive by the same stream. The first outcome for a live lease counts, later ones are stale. The
  URL is done, failed, excluded, or waits for another attempt. The last message of the visit (`final`) frees the slot.
  The host's delay counts from the end of the last response.

A lease expires if its worker dies. The **sweep** splits a shard after two expired grants and makes a single URL a dead
letter after five. The message of a shard may remain in the broker after the lease has ended, for example if the crawl
was deleted. The sweep also deletes such messages.

Guarantees at every step: a deposed owner changes no row, because the fence of its transactions no longer matches.
`discovered = queued + leased + done + failed + excluded` holds in every committed state. Memory is proportional to
the hosts that are worked on now or soon, not to URLs.
"""
