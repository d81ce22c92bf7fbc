"""The worker: takes URL shards, fetches what they name, politely, and reports what became of each URL.

The life of a URL, seen from here. It comes in a **URL shard**: URLs of one host, of one crawl, about ten seconds of
polite work. Before anything is sent the visit asks the owner to `begin`, and gets the URLs that are still wanted, the
moment from which it may send and how long it may go on. A worker never acts on a shard because it holds the message;
only an answered grant, measured on its own monotonic clock from before the question was sent, permits a request.

Then, for each URL in turn: the **robots** verdict (fetched once per host and shared), the wait for the host's
**delay** (from the end of the last response to the start of the next request; robots.txt counts), the **fetch**
within its limits and the egress rules, the **parse**, the links through **scope**. A redirect is a discovery like any
other link.

What was learned is made durable in one order, each step awaited: archive record, discoveries, items, and only then
the **outcome**. So whoever sees an outcome may rely on the rest; and a worker killed between any two steps has merely
left work that a later grant repeats, never a page that is marked done and has lost its links.

At the end of a visit there is one place that settles the message: done or handed back is an ack, no owner is a nak,
and an error that nobody foresaw is logged with its traceback and a nak. A worker keeps no state that anyone would
miss, never touches SQL, and any number of them may run.
"""
