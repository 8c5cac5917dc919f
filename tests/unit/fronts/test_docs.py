"""What docs/picker.md names is there."""

from __future__ import annotations

import re
from pathlib import Path

from zerohop_picker.config import OPTIONS, PickerConfig
from zerohop_picker.health import Health, Status
from zerohop_picker.worker import Worker
from zerohop_process.address import Listen

DOCS = (Path(__file__).resolve().parents[3] / "docs" / "picker.md").read_text()


async def test_every_metric_of_the_page_exists_and_is_described(tmp_path: Path) -> None:
    folder = tmp_path / "certs"
    config = PickerConfig(shm_dir=tmp_path, listen=(Listen(path=f"{folder}/p"),), secure_serving=True)
    worker = Worker(config)
    try:
        page = worker.metrics.page()
    finally:
        await worker.close()
    exported = {f"{name}_total" if kind == "counter" else name for name, kind, *_ in page}
    table = DOCS.partition("| metric (`zerohop_picker_...`)")[2]
    rows = [row.split("|")[1] for row in table.splitlines()[1:] if row.startswith("| `")]
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    of_the_supervisor = {"workers", "worker_restarts_total"}
    assert named - of_the_supervisor <= exported
    others = (
        "schedule",
        "plugin_",
        "prefix_",
        "requests_shed",
        "session",
        "saturation",
        "pool_",
        "value_age",
        "process_",
    )
    assert {name for name in exported - named if not name.startswith(others)} == set()


def test_every_flag_named_exists() -> None:
    flags = {option.flag for option in OPTIONS} | {"config", "help"}
    assert set(re.findall(r"--([a-z][a-z-]*)", DOCS)) <= flags


def test_every_health_service_named_is_known() -> None:
    state = Health()
    state.update(ready=True, pools={"NAMESPACE/NAME": True})
    table = DOCS.partition("| service |")[2].partition("| any other")[0]
    for service in re.findall(r"`(\w[\w./-]*)`", table):
        assert state.check(service) is Status.SERVING, service
