CREATE TABLE cluster (
	id INTEGER NOT NULL,
	partitions INTEGER NOT NULL,
	epoch INTEGER NOT NULL,
	public_suffixes TEXT NOT NULL,
	created_at_ms BIGINT NOT NULL,
	PRIMARY KEY (id)
);

CREATE TABLE crawls (
	crawl_id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
	name TEXT NOT NULL,
	revision INTEGER NOT NULL,
	state VARCHAR(16) NOT NULL,
	finished_reason TEXT,
	created_at_ms BIGINT NOT NULL,
	started_at_ms BIGINT,
	finished_at_ms BIGINT,
	active_ms BIGINT DEFAULT '0' NOT NULL,
	version INTEGER DEFAULT '1' NOT NULL,
	resumes_as VARCHAR(16),
	collected_at_ms BIGINT,
	change BIGINT DEFAULT '0' NOT NULL,
	active_pool TEXT,
	active_zero_ms BIGINT DEFAULT '0' NOT NULL,
	changes_deleted_ms BIGINT,
	desired VARCHAR(16),
	refresh_ms BIGINT DEFAULT '0' NOT NULL
);

CREATE INDEX crawls_change ON crawls (change, crawl_id);

CREATE INDEX crawls_uncollected ON crawls (crawl_id) WHERE state = 'deleted' AND collected_at_ms IS NULL;

CREATE INDEX crawls_worked_on ON crawls (crawl_id) WHERE state IN ('paused', 'running', 'seeding');

CREATE UNIQUE INDEX crawls_name ON crawls (name) WHERE state <> 'deleted';

CREATE TABLE pool_clocks (
	pool TEXT NOT NULL,
	ms BIGINT NOT NULL,
	PRIMARY KEY (pool)
);

CREATE TABLE crawl_labels (
	crawl_id BIGINT NOT NULL,
	label VARCHAR(63) NOT NULL,
	value VARCHAR(255) NOT NULL,
	PRIMARY KEY (crawl_id, label)
);

CREATE INDEX crawl_labels_value ON crawl_labels (label, value, crawl_id);

CREATE TABLE crawl_revisions (
	crawl_id BIGINT NOT NULL,
	revision INTEGER NOT NULL,
	spec TEXT NOT NULL,
	created_at_ms BIGINT NOT NULL,
	PRIMARY KEY (crawl_id, revision)
);

CREATE TABLE crawl_counters (
	crawl_id BIGINT NOT NULL,
	partition INTEGER NOT NULL,
	discovered BIGINT DEFAULT '0' NOT NULL,
	queued BIGINT DEFAULT '0' NOT NULL,
	leased BIGINT DEFAULT '0' NOT NULL,
	done BIGINT DEFAULT '0' NOT NULL,
	failed BIGINT DEFAULT '0' NOT NULL,
	excluded BIGINT DEFAULT '0' NOT NULL,
	pages BIGINT DEFAULT '0' NOT NULL,
	bytes BIGINT DEFAULT '0' NOT NULL,
	fetches BIGINT DEFAULT '0' NOT NULL,
	accepted BIGINT DEFAULT '0' NOT NULL,
	new BIGINT DEFAULT '0' NOT NULL,
	known BIGINT DEFAULT '0' NOT NULL,
	refused BIGINT DEFAULT '0' NOT NULL,
	stale BIGINT DEFAULT '0' NOT NULL,
	retries BIGINT DEFAULT '0' NOT NULL,
	revisits BIGINT DEFAULT '0' NOT NULL,
	revisiting BIGINT DEFAULT '0' NOT NULL,
	requisites BIGINT DEFAULT '0' NOT NULL,
	version BIGINT DEFAULT '0' NOT NULL,
	changed BIGINT DEFAULT '0' NOT NULL,
	PRIMARY KEY (crawl_id, partition)
);

CREATE INDEX crawl_counters_changed ON crawl_counters (partition, changed, crawl_id);

CREATE TABLE crawl_tallies (
	crawl_id BIGINT NOT NULL,
	partition INTEGER NOT NULL,
	kind VARCHAR(16) NOT NULL,
	"key" VARCHAR(64) NOT NULL,
	n BIGINT NOT NULL,
	PRIMARY KEY (crawl_id, partition, kind, "key")
);

CREATE TABLE partitions (
	partition INTEGER NOT NULL,
	owner_term BIGINT DEFAULT '0' NOT NULL,
	version BIGINT DEFAULT '0' NOT NULL,
	stream_created_ns BIGINT DEFAULT '0' NOT NULL,
	outcome_seq BIGINT DEFAULT '0' NOT NULL,
	outcome_ns BIGINT DEFAULT '0' NOT NULL,
	discovery_seq BIGINT DEFAULT '0' NOT NULL,
	discovery_ns BIGINT DEFAULT '0' NOT NULL,
	next_host BIGINT DEFAULT '1' NOT NULL,
	next_lease BIGINT DEFAULT '1' NOT NULL,
	PRIMARY KEY (partition)
);

CREATE TABLE hosts (
	host_id INTEGER NOT NULL,
	partition INTEGER NOT NULL,
	host TEXT NOT NULL,
	crawl_delay_ms INTEGER DEFAULT '0' NOT NULL,
	operator_delay_ms INTEGER DEFAULT '0' NOT NULL,
	latency_ms INTEGER DEFAULT '0' NOT NULL,
	failures INTEGER DEFAULT '0' NOT NULL,
	unreachable INTEGER DEFAULT '0' NOT NULL,
	last_failure_ms BIGINT DEFAULT '0' NOT NULL,
	last_failure TEXT,
	blocked_until_ms BIGINT DEFAULT '0' NOT NULL,
	visited_at_ms BIGINT DEFAULT '0' NOT NULL,
	recent INTEGER DEFAULT '1' NOT NULL,
	slowed_ms INTEGER DEFAULT '0' NOT NULL,
	asked_ms BIGINT DEFAULT '0' NOT NULL,
	silent_since_ms BIGINT DEFAULT '0' NOT NULL,
	ip VARCHAR(64),
	operator_blocked_until_ms BIGINT DEFAULT '0' NOT NULL,
	operator_slots INTEGER DEFAULT '0' NOT NULL,
	PRIMARY KEY (host_id),
	CONSTRAINT hosts_host UNIQUE (host)
);

CREATE TABLE queues (
	crawl_id BIGINT NOT NULL,
	host_id BIGINT NOT NULL,
	partition INTEGER NOT NULL,
	queued INTEGER DEFAULT '0' NOT NULL,
	waiting INTEGER DEFAULT '0' NOT NULL,
	leased INTEGER DEFAULT '0' NOT NULL,
	pages INTEGER DEFAULT '0' NOT NULL,
	shard_cap INTEGER DEFAULT '0' NOT NULL,
	closed BOOLEAN DEFAULT false NOT NULL,
	active_at_ms BIGINT DEFAULT '0' NOT NULL,
	next_due_ms BIGINT DEFAULT '0' NOT NULL,
	signals BLOB,
	found_ms BIGINT DEFAULT '0' NOT NULL,
	PRIMARY KEY (crawl_id, host_id)
)
 WITHOUT ROWID;

CREATE INDEX queues_pages ON queues (crawl_id, pages, host_id);

CREATE INDEX queues_partition ON queues (crawl_id, partition, host_id);

CREATE INDEX queues_ready ON queues (crawl_id, partition, active_at_ms) WHERE queued + waiting > 0;

CREATE TABLE urls (
	crawl_id BIGINT NOT NULL,
	host_id BIGINT NOT NULL,
	fingerprint BLOB NOT NULL,
	url TEXT NOT NULL,
	state SMALLINT NOT NULL,
	depth SMALLINT NOT NULL,
	hops SMALLINT NOT NULL,
	priority SMALLINT NOT NULL,
	attempts SMALLINT NOT NULL,
	flags SMALLINT NOT NULL,
	rank BIGINT NOT NULL,
	lease_id BIGINT,
	reason VARCHAR(40),
	via_host BIGINT,
	via BLOB,
	after_command BIGINT,
	PRIMARY KEY (crawl_id, host_id, fingerprint)
)
 WITHOUT ROWID;

CREATE INDEX urls_queued ON urls (crawl_id, host_id, rank) WHERE state = 0;

CREATE INDEX urls_seeds ON urls (crawl_id, host_id, fingerprint) WHERE via_host IS NULL;

CREATE INDEX urls_waiting ON urls (crawl_id, host_id, rank) WHERE state = 1;

CREATE TABLE fetches (
	crawl_id BIGINT NOT NULL,
	host_id BIGINT NOT NULL,
	fingerprint BLOB NOT NULL,
	at_ms BIGINT NOT NULL,
	status SMALLINT NOT NULL,
	reason TEXT,
	detail TEXT,
	latency_ms INTEGER NOT NULL,
	size BIGINT NOT NULL,
	mime TEXT,
	digest BLOB,
	segment TEXT,
	"offset" BIGINT,
	length BIGINT,
	etag TEXT,
	last_modified TEXT,
	location TEXT,
	title TEXT,
	links INTEGER NOT NULL,
	page BOOLEAN NOT NULL,
	history TEXT,
	truncated VARCHAR(16),
	links_found INTEGER,
	left_out TEXT,
	recrawl BLOB,
	items_at_ms BIGINT,
	PRIMARY KEY (crawl_id, host_id, fingerprint)
)
 WITHOUT ROWID;

CREATE TABLE seed_contexts (
	crawl_id BIGINT NOT NULL,
	partition INTEGER NOT NULL,
	context_id BIGINT NOT NULL,
	context TEXT NOT NULL,
	PRIMARY KEY (crawl_id, partition, context_id)
)
 WITHOUT ROWID;

CREATE TABLE url_contexts (
	crawl_id BIGINT NOT NULL,
	host_id BIGINT NOT NULL,
	fingerprint BLOB NOT NULL,
	context_id BIGINT NOT NULL,
	PRIMARY KEY (crawl_id, host_id, fingerprint)
)
 WITHOUT ROWID;

CREATE TABLE seed_links (
	crawl_id BIGINT NOT NULL,
	host_id BIGINT NOT NULL,
	fingerprint BLOB NOT NULL,
	depth SMALLINT NOT NULL,
	hops SMALLINT NOT NULL,
	extra SMALLINT NOT NULL,
	via_host BIGINT NOT NULL,
	via BLOB NOT NULL,
	PRIMARY KEY (crawl_id, host_id, fingerprint)
)
 WITHOUT ROWID;

CREATE TABLE links_left_out (
	crawl_id BIGINT NOT NULL,
	partition INTEGER NOT NULL,
	reason VARCHAR(40) NOT NULL,
	url TEXT NOT NULL,
	host_id BIGINT NOT NULL,
	fingerprint BLOB NOT NULL,
	PRIMARY KEY (crawl_id, partition, reason, url)
)
 WITHOUT ROWID;

CREATE TABLE leases (
	lease_id INTEGER NOT NULL,
	partition INTEGER NOT NULL,
	term BIGINT NOT NULL,
	crawl_id BIGINT NOT NULL,
	spec INTEGER NOT NULL,
	host_id BIGINT NOT NULL,
	slot SMALLINT NOT NULL,
	pool TEXT NOT NULL,
	delay_ms INTEGER NOT NULL,
	grants INTEGER NOT NULL,
	expired INTEGER NOT NULL,
	fingerprints BLOB NOT NULL,
	issued_at_ms BIGINT NOT NULL,
	PRIMARY KEY (lease_id)
);

CREATE INDEX leases_crawl ON leases (crawl_id, grants, issued_at_ms);

CREATE INDEX leases_partition ON leases (partition);

CREATE TABLE producers (
	partition INTEGER NOT NULL,
	crawl_id BIGINT NOT NULL,
	producer TEXT NOT NULL,
	n BIGINT NOT NULL,
	total BIGINT NOT NULL,
	gaps BIGINT DEFAULT '0' NOT NULL,
	seen_at_ms BIGINT,
	PRIMARY KEY (partition, crawl_id, producer)
)
 WITHOUT ROWID;

CREATE TABLE commands (
	id TEXT NOT NULL,
	partition INTEGER NOT NULL,
	crawl_id BIGINT NOT NULL,
	kind VARCHAR(32) NOT NULL,
	rows BIGINT DEFAULT '0' NOT NULL,
	applied_at_ms BIGINT NOT NULL,
	PRIMARY KEY (id, partition)
);

CREATE TABLE commands_in_progress (
	id TEXT NOT NULL,
	partition INTEGER NOT NULL,
	number BIGINT NOT NULL,
	crawl_id BIGINT NOT NULL,
	kind VARCHAR(32) NOT NULL,
	args BLOB NOT NULL,
	sequence BIGINT NOT NULL,
	through BIGINT NOT NULL,
	"after" TEXT NOT NULL,
	accepted_at_ms BIGINT NOT NULL,
	PRIMARY KEY (id, partition)
);

CREATE INDEX commands_in_progress_crawl ON commands_in_progress (crawl_id);

CREATE INDEX commands_in_progress_partition ON commands_in_progress (partition, number);

CREATE TABLE dead_letters (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
	partition INTEGER NOT NULL,
	crawl_id BIGINT,
	kind VARCHAR(16) NOT NULL,
	at_ms BIGINT NOT NULL,
	url TEXT,
	evidence TEXT NOT NULL,
	payload BLOB
);

CREATE INDEX dead_letters_crawl ON dead_letters (crawl_id, id);

CREATE TABLE report_holds (
	holder VARCHAR(64) NOT NULL,
	beat BIGINT NOT NULL,
	begun_at_ms BIGINT NOT NULL,
	PRIMARY KEY (holder)
);

CREATE TABLE items (
	crawl_id BIGINT NOT NULL,
	item_id BLOB NOT NULL,
	rule VARCHAR(63) NOT NULL,
	host_id BIGINT NOT NULL,
	fingerprint BLOB NOT NULL,
	data TEXT NOT NULL,
	PRIMARY KEY (crawl_id, item_id)
)
 WITHOUT ROWID;

CREATE INDEX items_page ON items (crawl_id, fingerprint, host_id, item_id);

CREATE TABLE item_pages (
	crawl_id BIGINT NOT NULL,
	host_id BIGINT NOT NULL,
	fingerprint BLOB NOT NULL,
	url TEXT NOT NULL,
	lease_id BIGINT NOT NULL,
	grants INTEGER NOT NULL,
	at_ms BIGINT NOT NULL,
	PRIMARY KEY (crawl_id, host_id, fingerprint)
)
 WITHOUT ROWID;

CREATE TABLE item_drafts (
	crawl_id BIGINT NOT NULL,
	host_id BIGINT NOT NULL,
	fingerprint BLOB NOT NULL,
	lease_id BIGINT NOT NULL,
	grants INTEGER NOT NULL,
	url TEXT NOT NULL,
	at_ms BIGINT NOT NULL,
	items BLOB NOT NULL,
	PRIMARY KEY (crawl_id, host_id, fingerprint, lease_id, grants)
)
 WITHOUT ROWID;

CREATE TABLE item_writer (
	id INTEGER NOT NULL,
	term BIGINT DEFAULT '0' NOT NULL,
	version BIGINT DEFAULT '0' NOT NULL,
	stream_created_ns BIGINT DEFAULT '0' NOT NULL,
	sequence BIGINT DEFAULT '0' NOT NULL,
	timed_sequence BIGINT DEFAULT '0' NOT NULL,
	at_ns BIGINT DEFAULT '0' NOT NULL,
	PRIMARY KEY (id)
);

CREATE TABLE page_versions (
	crawl_id BIGINT NOT NULL,
	host_id BIGINT NOT NULL,
	fingerprint BLOB NOT NULL,
	version INTEGER NOT NULL,
	at_ms BIGINT NOT NULL,
	status SMALLINT NOT NULL,
	size BIGINT NOT NULL,
	mime TEXT,
	digest BLOB,
	title TEXT,
	truncated VARCHAR(16),
	segment TEXT NOT NULL,
	"offset" BIGINT NOT NULL,
	length BIGINT NOT NULL,
	PRIMARY KEY (crawl_id, host_id, fingerprint, version)
)
 WITHOUT ROWID;

CREATE TABLE page_changes (
	crawl_id BIGINT NOT NULL,
	at_ms BIGINT NOT NULL,
	partition INTEGER NOT NULL,
	number BIGINT NOT NULL,
	entries BLOB NOT NULL,
	PRIMARY KEY (crawl_id, at_ms, partition, number)
)
 WITHOUT ROWID;

CREATE TABLE api_keys (
	key_id VARCHAR(16) NOT NULL,
	name TEXT NOT NULL,
	role VARCHAR(16) NOT NULL,
	digest BLOB NOT NULL,
	created_at_ms BIGINT NOT NULL,
	created_by TEXT NOT NULL,
	revoked_at_ms BIGINT,
	kind VARCHAR(16) DEFAULT 'key' NOT NULL,
	expires_at_ms BIGINT,
	networks TEXT,
	certificate TEXT,
	spec TEXT,
	version BIGINT DEFAULT '1' NOT NULL,
	last_used_at_ms BIGINT,
	PRIMARY KEY (key_id)
);

CREATE INDEX api_keys_certificate ON api_keys (certificate);

CREATE INDEX api_keys_name ON api_keys (name, key_id);

CREATE TABLE cluster_secrets (
	name VARCHAR(32) NOT NULL,
	secret BLOB NOT NULL,
	PRIMARY KEY (name)
);

CREATE TABLE audit_log (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
	at_ms BIGINT NOT NULL,
	actor TEXT NOT NULL,
	request TEXT NOT NULL,
	action VARCHAR(32) NOT NULL,
	target TEXT NOT NULL,
	"before" TEXT,
	"after" TEXT
);

CREATE TABLE idempotency (
	actor TEXT NOT NULL,
	"key" VARCHAR(255) NOT NULL,
	digest BLOB NOT NULL,
	answer TEXT NOT NULL,
	at_ms BIGINT NOT NULL,
	PRIMARY KEY (actor, "key")
);

CREATE INDEX idempotency_at ON idempotency (at_ms);

CREATE TABLE command_requests (
	id TEXT NOT NULL,
	crawl_id BIGINT NOT NULL,
	kind VARCHAR(32) NOT NULL,
	args TEXT NOT NULL,
	partitions INTEGER NOT NULL,
	at_ms BIGINT NOT NULL,
	actor TEXT NOT NULL,
	PRIMARY KEY (id)
);

CREATE TABLE config_revisions (
	revision INTEGER NOT NULL,
	document TEXT NOT NULL,
	changed_at_ms BIGINT NOT NULL,
	changed_by TEXT NOT NULL,
	PRIMARY KEY (revision)
);

CREATE TABLE exclusions (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
	target TEXT NOT NULL,
	reason TEXT NOT NULL,
	requested_by TEXT NOT NULL,
	until_ms BIGINT,
	withdraw BOOLEAN NOT NULL,
	created_at_ms BIGINT NOT NULL,
	created_by TEXT NOT NULL,
	revision BIGINT NOT NULL,
	commanded BIGINT DEFAULT '0' NOT NULL,
	CONSTRAINT exclusions_target UNIQUE (target)
);

CREATE TABLE exclusion_list (
	id INTEGER NOT NULL,
	revision BIGINT NOT NULL,
	PRIMARY KEY (id)
);

CREATE TABLE host_policies (
	host TEXT NOT NULL,
	partition INTEGER NOT NULL,
	spec TEXT NOT NULL,
	delay_ms INTEGER NOT NULL,
	blocked_until_ms BIGINT NOT NULL,
	slots INTEGER NOT NULL,
	reason TEXT,
	revision BIGINT NOT NULL,
	created_at_ms BIGINT NOT NULL,
	created_by TEXT NOT NULL,
	changed_at_ms BIGINT NOT NULL,
	changed_by TEXT NOT NULL,
	PRIMARY KEY (host)
);

CREATE TABLE host_policy_commands (
	revision INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
	host TEXT NOT NULL,
	partition INTEGER NOT NULL
);

CREATE TABLE seed_sets (
	set_id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
	crawl_id BIGINT NOT NULL,
	name VARCHAR(63) NOT NULL,
	document TEXT NOT NULL,
	canonical TEXT NOT NULL,
	seeds INTEGER NOT NULL,
	revision BIGINT NOT NULL,
	created_at_ms BIGINT NOT NULL,
	created_by TEXT NOT NULL,
	changed_at_ms BIGINT NOT NULL,
	changed_by TEXT NOT NULL
);

CREATE UNIQUE INDEX seed_sets_name ON seed_sets (crawl_id, name);

CREATE TABLE seed_set_urls (
	set_id BIGINT NOT NULL,
	fingerprint BLOB NOT NULL,
	PRIMARY KEY (set_id, fingerprint)
)
 WITHOUT ROWID;

CREATE INDEX seed_set_urls_fingerprint ON seed_set_urls (fingerprint);

CREATE TABLE seed_set_commands (
	revision INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
	crawl_id BIGINT NOT NULL,
	name VARCHAR(63) NOT NULL,
	added TEXT NOT NULL,
	removed TEXT NOT NULL
);

CREATE TABLE drains (
	role VARCHAR(16) NOT NULL,
	member VARCHAR(64) NOT NULL,
	since_ms BIGINT NOT NULL,
	asked_by TEXT NOT NULL,
	PRIMARY KEY (role, member)
);

CREATE TABLE schedules (
	schedule_id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
	name VARCHAR(63) NOT NULL,
	version BIGINT NOT NULL,
	spec TEXT NOT NULL,
	crawl VARCHAR(63),
	paused BOOLEAN NOT NULL,
	due_ms BIGINT,
	fires_ms BIGINT,
	last_ms BIGINT DEFAULT '0' NOT NULL,
	created_at_ms BIGINT NOT NULL,
	created_by TEXT NOT NULL
);

CREATE INDEX schedules_crawl ON schedules (crawl, name);

CREATE INDEX schedules_due ON schedules (fires_ms, schedule_id) WHERE NOT paused;

CREATE UNIQUE INDEX schedules_name ON schedules (name);

CREATE TABLE schedule_firings (
	schedule_id BIGINT NOT NULL,
	due_ms BIGINT NOT NULL,
	at_ms BIGINT NOT NULL,
	verb VARCHAR(16) NOT NULL,
	outcome VARCHAR(16) NOT NULL,
	detail TEXT NOT NULL,
	missed INTEGER DEFAULT '0' NOT NULL,
	until_ms BIGINT NOT NULL,
	PRIMARY KEY (schedule_id, due_ms)
);

CREATE TABLE schedule_effects (
	schedule_id BIGINT NOT NULL,
	due_ms BIGINT NOT NULL,
	crawl VARCHAR(63) NOT NULL,
	crawl_id BIGINT,
	outcome VARCHAR(16) NOT NULL,
	detail TEXT NOT NULL,
	at_ms BIGINT NOT NULL,
	command TEXT,
	commanded BOOLEAN DEFAULT false NOT NULL,
	PRIMARY KEY (schedule_id, due_ms, crawl)
);

CREATE INDEX schedule_effects_commands ON schedule_effects (schedule_id, due_ms) WHERE command IS NOT NULL AND NOT commanded;

CREATE INDEX schedule_effects_queued ON schedule_effects (crawl, schedule_id, due_ms) WHERE outcome = 'queued';

CREATE TABLE leader_fence (
	id INTEGER NOT NULL,
	term BIGINT NOT NULL,
	PRIMARY KEY (id)
)
