"""The worker: takes URL shards, fetches their URLs politely, and reports the outcome of each URL.

A URL arrives in a **URL shard**: URLs of one host of one crawl, about ten seconds of polite work. Before it sends a
request, the visit sends the owner a `begin`. The grant in the reply lists the URLs still to fetch, and limits when the
visit may send. Without a grant, no request is sent. The worker measures the grant on its own monotonic clock, from just
before it sent the `begin`.

A visit fetches its URLs one after another, in these steps:

1. Check the URL against the **robots** rules, which are fetched once per origin and shared.
2. Wait for the host's **delay**, from the end of the last response to the next request. This includes requests for
   robots.txt.
3. **Fetch** within the limits and the egress rules.
4. **Parse** the page and judge its links by **scope**. A redirect is a discovery like any other link.

A worker makes results durable in one order and awaits each step: archive record, discoveries, items, **outcome**. So a
published outcome implies all the rest. If a worker is killed between two steps, a later grant repeats the work. No page
is ever marked done without its links.

`Runtime` acknowledges a shard's message if the shard is done or its lease is gone. It naks the message if the broker
must deliver it again, for example after an unexpected error. A worker may lose all its state without harm, and never
touches SQL. Any number of workers may run.
"""
