"""Bytes of every message as a released program wrote them. They are read for ever: add samples, never change one."""

from shared.domain.ops.watermarks import Pressure
from shared.wire.messages import (
    Begin,
    Command,
    Discoveries,
    Extend,
    Go,
    Gone,
    HostNote,
    HostProgress,
    HostWaiting,
    LeftOut,
    Link,
    MasterStatus,
    Message,
    Origin,
    Outcome,
    Progress,
    Record,
    ShardUnreadable,
    ShardUrl,
    Superseded,
    UrlOutcome,
    UrlShard,
    Wait,
    WorkerStatus,
)

SAMPLES: dict[str, tuple[Message, str]] = {
    "shard, least": (
        UrlShard(lease=4099, crawl=1, spec=1, host_id=8195, host="a.test", slot=0, delay_ms=0, urls=[]),
        "89a474797065a773686172642f31a56c65617365cd1003a5637261776c01a47370656301a7686f73745f6964cd2003a4686f"
        "7374a6612e74657374a4736c6f7400a864656c61795f6d7300a475726c7390",
    ),
    "shard, full": (
        UrlShard(
            lease=17596481011712,
            crawl=7,
            spec=3,
            host_id=40972,
            host="xn--bcher-kva.example:8080",
            slot=2,
            delay_ms=1500,
            urls=[
                ShardUrl("https://xn--bcher-kva.example:8080/", 0),
                ShardUrl(
                    "https://xn--bcher-kva.example:8080/a?b=%C3%BC", 3, 2, 1, '"etag"', "Tue, 01 Jul 2025 00:00:00 GMT"
                ),
            ],
        ),
        "89a474797065a773686172642f31a56c65617365cf0000100100000000a5637261776c07a47370656303a7686f73745f6964"
        "cda00ca4686f7374ba786e2d2d62636865722d6b76612e6578616d706c653a38303830a4736c6f7402a864656c61795f6d73"
        "cd05dca475726c739296d92368747470733a2f2f786e2d2d62636865722d6b76612e6578616d706c653a383038302f000100"
        "c0c096d92d68747470733a2f2f786e2d2d62636865722d6b76612e6578616d706c653a383038302f613f623d254333254243"
        "030201a6226574616722bd5475652c203031204a756c20323032352030303a30303a303020474d54",
    ),
    "begin": (
        Begin(lease=4099, delivery=1, holder="worker-1/17"),
        "84a474797065a7626567696e2f31a56c65617365cd1003a864656c697665727901a6686f6c646572ab776f726b65722d312f3137",
    ),
    "extend": (
        Extend(lease=4099, grant=2, holder="worker-1/17"),
        "84a474797065a8657874656e642f31a56c65617365cd1003a56772616e7402a6686f6c646572ab776f726b65722d312f3137",
    ),
    "go, least": (
        Go(grant=1, expires_ms=30000),
        "83a474797065a4676f2f31a56772616e7401aa657870697265735f6d73cd7530",
    ),
    "go, full": (
        Go(grant=2, expires_ms=30000, not_before_ms=250, remaining=[0, 2, 499]),
        "85a474797065a4676f2f31a56772616e7402aa657870697265735f6d73cd7530ad6e6f745f6265666f72655f6d73ccfaa972"
        "656d61696e696e67930002cd01f3",
    ),
    "wait": (
        Wait(ms=1234),
        "82a474797065a6776169742f31a26d73cd04d2",
    ),
    "gone": (
        Gone(),
        "81a474797065a6676f6e652f31",
    ),
    "superseded": (
        Superseded(),
        "81a474797065ac737570657273656465642f31",
    ),
    "outcome, least": (
        Outcome(lease=4099, crawl=1, grant=1, host_id=8195),
        "85a474797065a96f7574636f6d652f31a56c65617365cd1003a5637261776c01a56772616e7401a7686f73745f6964cd2003",
    ),
    "outcome, full": (
        Outcome(
            lease=4099,
            crawl=1,
            grant=2,
            host_id=8195,
            results=[
                UrlOutcome(bytes(range(16)), 1, 1751328000123),
                UrlOutcome(
                    fingerprint=bytes(range(16, 32)),
                    end=2,
                    at_ms=1751328000999,
                    status=301,
                    reason="redirect",
                    detail="moved",
                    latency_ms=87,
                    size=123456,
                    mime="text/html",
                    digest=bytes(range(20)),
                    record=Record("orb-20250701-00001.warc.gz", 5_000_000_000, 4096),
                    etag='W/"x"',
                    last_modified="Tue, 01 Jul 2025 00:00:00 GMT",
                    location="https://a.test/b",
                    title="Ein Titel \u2603",
                    links=12,
                    retry_after_ms=60000,
                ),
            ],
            not_attempted=[bytes(range(32, 48))],
            final=True,
            quiet_ms=40,
            note=HostNote(2000, 90, "192.0.2.1", "http_503", "busy", 120000),
        ),
        "8aa474797065a96f7574636f6d652f31a56c65617365cd1003a5637261776c01a56772616e7402a7686f73745f6964cd2003"
        "a7726573756c747392dc0011c410000102030405060708090a0b0c0d0e0f01cf00000197c348887b00a0a00000a0c400c0c0"
        "c0c0c000ffdc0011c410101112131415161718191a1b1c1d1e1f02cf00000197c3488be7cd012da87265646972656374a56d"
        "6f76656457ce0001e240a9746578742f68746d6cc414000102030405060708090a0b0c0d0e0f1011121393ba6f72622d3230"
        "3235303730312d30303030312e776172632e677acf000000012a05f200cd1000a5572f227822bd5475652c203031204a756c"
        "20323032352030303a30303a303020474d54b068747470733a2f2f612e746573742f62ad45696e20546974656c20e298830c"
        "cdea60ad6e6f745f617474656d7074656491c410202122232425262728292a2b2c2d2e2fa566696e616cc3a871756965745f"
        "6d7328a46e6f746596cd07d05aa93139322e302e322e31a8687474705f353033a462757379ce0001d4c0",
    ),
    "outcome, with losses": (
        Outcome(
            lease=4099,
            crawl=1,
            grant=2,
            host_id=8195,
            results=[
                UrlOutcome(
                    fingerprint=bytes(range(16)),
                    end=1,
                    at_ms=1751328000123,
                    status=200,
                    detail="the body was cut at fetch.max_body_bytes",
                    mime="text/html",
                    record=Record("orb-20250701-00001.warc.gz", 17, 4096),
                    links=12,
                    truncated="length",
                    found=64,
                    left_out=[
                        LeftOut("other_host", 50, ["http://www.a.test/1", "http://www.a.test/2"]),
                        LeftOut("max_links_per_page", 2),
                    ],
                ),
            ],
            final=True,
        ),
        "87a474797065a96f7574636f6d652f31a56c65617365cd1003a5637261776c01a56772616e7402a7686f73745f6964cd2003"
        "a7726573756c747391dc0014c410000102030405060708090a0b0c0d0e0f01cf00000197c348887bccc8a0d9287468652062"
        "6f647920776173206375742061742066657463682e6d61785f626f64795f62797465730000a9746578742f68746d6cc40093"
        "ba6f72622d32303235303730312d30303030312e776172632e677a11cd1000c0c0c0c00cffa66c656e677468409293aa6f74"
        "6865725f686f73743292b3687474703a2f2f7777772e612e746573742f31b3687474703a2f2f7777772e612e746573742f32"
        "93b26d61785f6c696e6b735f7065725f706167650290a566696e616cc3",
    ),
    "discoveries": (
        Discoveries(
            crawl=1,
            spec=1,
            producer="worker-1",
            n=5,
            total=612,
            origins=[
                Origin(0, b"", [Link("https://a.test/", 0)]),
                Origin(8195, bytes(range(16)), [Link("https://a.test/b", 1, 1, -5), Link("https://a.test/c", 2)]),
            ],
        ),
        "87a474797065ad646973636f7665726965732f31a5637261776c01a47370656301a870726f6475636572a8776f726b65722d"
        "31a16e05a5746f74616ccd0264a76f726967696e73929300c4009194af68747470733a2f2f612e746573742f00000093cd20"
        "03c410000102030405060708090a0b0c0d0e0f9294b068747470733a2f2f612e746573742f620101fb94b068747470733a2f"
        "2f612e746573742f63020000",
    ),
    "command, least": (
        Command(id="01J", crawl=1, kind="cancel"),
        "84a474797065a9636f6d6d616e642f31a26964a330314aa5637261776c01a46b696e64a663616e63656c",
    ),
    "command, full": (
        Command(id="01J", crawl=1, kind="retry", args={"reason": ["http_503", None], "limit": 10, "deep": {"a": 1.5}}),
        "85a474797065a9636f6d6d616e642f31a26964a330314aa5637261776c01a46b696e64a57265747279a46172677383a67265"
        "61736f6e92a8687474705f353033c0a56c696d69740aa46465657081a161cb3ff8000000000000",
    ),
    "unreadable": (
        ShardUnreadable(
            pool="default",
            host_id=4099,
            slot=2,
            sequence=17,
            worker="worker-1",
            reason="Input data was truncated",
            size=70000,
            data=b"\xc1\x00",
        ),
        "89a474797065ac756e7265616461626c652f31a4706f6f6ca764656661756c74a7686f73745f6964cd1003a4736c6f7402a8"
        "73657175656e636511a6776f726b6572a8776f726b65722d31a6726561736f6eb8496e707574206461746120776173207472"
        "756e6361746564a473697a65ce00011170a464617461c402c100",
    ),
    "progress, least": (
        Progress(crawl=1, name="docs", revision=1, state="running"),
        "de0005a474797065aa70726f67726573732f31a5637261776c01a46e616d65a4646f6373a87265766973696f6e01a5737461"
        "7465a772756e6e696e67",
    ),
    "progress, full": (
        Progress(
            crawl=1,
            name="docs",
            revision=2,
            state="finished",
            finished_reason="done",
            counters={"done": 10, "queued": 0},
            tallies={"status": {"200": 9, "404": 1}, "failed": {}},
            active_ms=123456,
            hosts_in_motion=3,
            hosts_known=5,
            leases=2,
            reports_pending=7,
            slowest=[HostProgress("a.test", 900), HostProgress("b.test", 800, 12, 4000)],
            workers=[WorkerStatus(worker="worker-1", pool="eu", visits=400, busy=31)],
            dead_letters=1,
            alarms=["the reports stream was replaced"],
        ),
        "de0011a474797065aa70726f67726573732f31a5637261776c01a46e616d65a4646f6373a87265766973696f6e02a5737461"
        "7465a866696e6973686564af66696e69736865645f726561736f6ea4646f6e65a8636f756e7465727382a4646f6e650aa671"
        "756575656400a774616c6c69657382a673746174757382a332303009a334303401a66661696c656480a96163746976655f6d"
        "73ce0001e240af686f7374735f696e5f6d6f74696f6e03ab686f7374735f6b6e6f776e05a66c656173657302af7265706f72"
        "74735f70656e64696e6707a7736c6f776573749294a6612e74657374cd0384000094a6622e74657374cd03200ccd0fa0a777"
        "6f726b6572739185a474797065a8776f726b65722f31a6776f726b6572a8776f726b65722d31a4706f6f6ca26575a6766973"
        "697473cd0190a4627573791fac646561645f6c65747465727301a6616c61726d7391bf746865207265706f72747320737472"
        "65616d20776173207265706c61636564",
    ),
    "progress, of a crawl that waits": (
        Progress(
            crawl=1,
            name="docs",
            revision=1,
            state="running",
            waiting=[HostWaiting("a.test", "silent", 20_000, 7, 1_000, "connect", 500_000, asked=True)],
            hosts_waiting=3,
            standing=True,
            hosts_left_ms=90_000,
        ),
        "de0009a474797065aa70726f67726573732f31a5637261776c01a46e616d65a4646f6373a87265766973696f6e01a5737461"
        "7465a772756e6e696e67a777616974696e679198a6612e74657374a673696c656e74cd4e2007cd03e8a7636f6e6e656374ce"
        "0007a120c3ad686f7374735f77616974696e6703a87374616e64696e67c3ad686f7374735f6c6566745f6d73ce00015f90",
    ),
    "worker status": (
        WorkerStatus(
            worker="worker-1", pool="eu", visits=400, busy=31, pulling=False, pid=4242, pages=99, bytes=12345678901
        ),
        "89a474797065a8776f726b65722f31a6776f726b6572a8776f726b65722d31a4706f6f6ca26575a6766973697473cd0190a4"
        "627573791fa770756c6c696e67c2a3706964cd1092a5706167657363a56279746573cf00000002dfdc1c35",
    ),
    "worker status, with its configuration": (
        WorkerStatus(
            worker="worker-1",
            pool="eu",
            visits=400,
            busy=31,
            pulling=False,
            pid=4242,
            pages=99,
            bytes=12345678901,
            in_flight=29,
            uptime_ms=86_400_000,
            version="1.0",
            draining=True,
            config=3,
        ),
        "8ea474797065a8776f726b65722f31a6776f726b6572a8776f726b65722d31a4706f6f6ca26575a6766973697473cd0190a4"
        "627573791fa770756c6c696e67c2a3706964cd1092a5706167657363a56279746573cf00000002dfdc1c35a9696e5f666c69"
        "6768741da9757074696d655f6d73ce05265c00a776657273696f6ea3312e30a8647261696e696e67c3a6636f6e66696703",
    ),
    "worker status, under resource pressure": (
        WorkerStatus(
            worker="worker-1",
            pool="eu",
            visits=400,
            busy=31,
            pressure=(Pressure("archive", "the archive's disk has 1 B free of 100 B"),),
        ),
        "86a474797065a8776f726b65722f31a6776f726b6572a8776f726b65722d31a4706f6f6ca26575a6766973697473cd0190a4"
        "627573791fa870726573737572659192a761726368697665d92874686520617263686976652773206469736b206861732031"
        "20422066726565206f66203130302042",
    ),
    "master status, least": (
        MasterStatus(master="m1", partitions=0),
        "83a474797065a86d61737465722f31a66d6173746572a26d31aa706172746974696f6e7300",
    ),
    "master status, full": (
        MasterStatus(
            master="m1", partitions=32, leading=True, draining=True, shards=120, uptime_ms=86_400_000, config=3
        ),
        "88a474797065a86d61737465722f31a66d6173746572a26d31aa706172746974696f6e7320a76c656164696e67c3a8647261"
        "696e696e67c3a673686172647378a9757074696d655f6d73ce05265c00a6636f6e66696703",
    ),
}
