"""The settings of a process: read once from its environment (`ORB_*`), frozen, handed down by constructors."""

from pathlib import Path
from typing import Literal

from pydantic import Field, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict


class _Process(BaseSettings):
    model_config = SettingsConfigDict(env_prefix="ORB_", frozen=True, extra="ignore")

    dir: Path = Field(description="the folder of the crawl: crawl.db, archive/, nats/")
    nats_url: str = Field(description="nats://host:port of the broker")
    nats_token: SecretStr | None = Field(default=None, description="the broker's token")
    ack_wait_s: float = Field(default=30.0, ge=1, le=3600, description="after this the broker delivers a shard again")
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["json", "text"] = "json"


class MasterSettings(_Process):
    """`orb master`: owns partitions of the frontier."""

    partitions: int = Field(default=8, ge=1, le=4096, description="fixed when the folder is first used")
    pool: str = "default"
    grant_s: float = Field(default=30.0, ge=1, le=3600, description="how long a worker may fetch without asking again")
    grace_s: float = Field(default=10.0, ge=0, le=3600, description="how long reports are still applied at a stop")
    synchronous: Literal["NORMAL", "FULL"] = Field(default="NORMAL", description="FULL survives the loss of power")
    alone: bool = Field(default=False, description="the starter has proved that no process of an earlier run lives")


class WorkerSettings(_Process):
    """`orb worker`: fetches what it is leased."""

    id: str = Field(min_length=1, max_length=64)
    pool: str = "default"
    visits: int = Field(default=64, ge=1, le=10_000, description="URL shards in hand at once")
    connections: int = Field(default=512, ge=1, le=65_536, description="connections kept open")
    grace_s: float = Field(default=10.0, ge=0, le=3600, description="how long visits may go on after a stop")
    report_s: float = Field(default=2.0, ge=0.01, le=60, description="how long a finished page may wait to be reported")
