"""What the scheduler exports, under our names and under the field's."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from unit.scheduling.world import World, chat
from zerohop_picker.metrics import Metrics, render
from zerohop_picker.scheduling.measures import Measures


def test_metrics_come_under_the_fields_names_when_asked(world: World) -> None:
    world.add("a", waiting=2.0, kv_cache_usage=0.5)
    world.add("b", waiting=4.0, kv_cache_usage=None)
    world.publish()
    pages = {}
    for worker in ("0", "1"):
        metrics = Metrics()
        scheduler = world.scheduler(worker=f"w{worker}", measures=Measures(metrics))
        for _ in range(3):
            world.pick(scheduler, chat("long " * 1000))
        world.refused(scheduler, chat(subset=("10.9.9.9:1",)))
        pages[worker] = metrics.page()
    samples = {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(render(pages, field_names=True).decode())
        for sample in family.samples
    }
    labels = (("model_name", "m"), ("priority", "0"), ("target_model_name", "m"))
    assert samples["llm_d_epp_request_total", labels] == 6
    assert samples["inference_objective_request_total", (labels[0], labels[2])] == 6
    assert samples["llm_d_epp_scheduler_attempts_total", (("status", "success"),)] == 6
    assert samples["llm_d_epp_scheduler_attempts_total", (("status", "failure"),)] == 2
    assert samples["llm_d_epp_scheduler_e2e_duration_seconds_count", ()] == 8
    assert samples["inference_extension_scheduler_e2e_duration_seconds_bucket", (("le", "+Inf"),)] == 8
    assert samples["llm_d_epp_pool_average_queue_size", (("name", ""),)] == 3
    assert samples["inference_pool_average_kv_cache_utilization", (("name", ""),)] == 0.5
    assert samples["inference_pool_ready_pods", (("name", ""),)] == 2
    assert samples["llm_d_epp_prefix_indexer_size", ()] == 4
    plugin = (
        ("extension_point", "filter"),
        ("plugin_name", "sticky-prefix-filter"),
        ("plugin_type", "sticky-prefix-filter"),
    )
    assert samples["llm_d_epp_plugin_duration_seconds_count", plugin] == 2  # the first of each worker's three
    ours = render(pages).decode()
    assert "llm_d_epp" not in ours
    assert 'zerohop_picker_scheduler_attempts_total{status="success",worker="1"} 3.0' in ours
    assert "zerohop_picker_value_age_seconds_count" in ours
