"""What the owner of a partition does: keep the truth about its URLs and hosts, and hand out polite work.

The life of a URL, seen from here. It arrives as a *discovery*, a seed or an outlink, by the same door, and waits in
the stream until the owner **ingests** it: one transaction that opens with the fence (the partition's position moves,
under our term and from where we left it, or nothing happens at all), inserts what is new, counts what was known, and
refuses what scope, depth or budget exclude. Now it is *queued*, a row in SQL; what memory holds is the heap of hosts
that are due.

When its host is due and has a free slot, the URL leaves with its best neighbours as a **URL shard**: a lease row and
the counters in one transaction, then the message. A worker asks to `begin`; the owner **grants** it time, but only
after it has applied the outcomes published up to that moment, so no URL is granted to two workers at once or fetched
twice for a report that was merely late. Then outcomes come back, by the same stream and into the same transaction as
everything else: the first for a live lease counts, later ones are stale. The URL is done, or failed, or excluded, or
queued again with a time; `final` frees the slot, and the delay counts on from the end of the last response.

Whatever dies on the way leaves a lease that expires. The **sweep** counts expired grants (the owner counts, since no
broker can tell a dead worker from a poisonous URL), splits a shard after two and buries a single URL after five; and it
takes shards whose lease is gone out of the queues, where nobody may ever come for them.

What is promised, at every step: an owner that was deposed changes no row, because each of its transactions starts
with a fence that no longer matches; `discovered = queued + leased + done + failed + excluded` holds in every
committed state; and memory is proportional to hosts in motion, not to URLs.
"""
