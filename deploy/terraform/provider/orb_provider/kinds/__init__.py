"""The resources and data sources of the provider, one module each."""

from typing import Final

from orb_provider.kinds.api_key import ApiKey
from orb_provider.kinds.cluster import ClusterSource
from orb_provider.kinds.config import Config
from orb_provider.kinds.crawl import Crawl, CrawlSource, CrawlsSource
from orb_provider.kinds.exclusion import Exclusion
from orb_provider.kinds.host_policy import HostPolicy
from orb_provider.kinds.schedule import Schedule
from orb_provider.kinds.seed_set import SeedSet
from orb_provider.lifecycle import Lifecycle
from orb_provider.sources import DataSource

RESOURCES: Final[tuple[type[Lifecycle], ...]] = (ApiKey, Config, Crawl, Exclusion, HostPolicy, Schedule, SeedSet)
SOURCES: Final[tuple[type[DataSource], ...]] = (ClusterSource, CrawlSource, CrawlsSource)
