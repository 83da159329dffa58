"""The statistics of a model whose engines are replicas."""

from galley.types.engine_stats import EngineStats


def test_replicas_count_as_one_engine_with_one_folder_of_prefixes() -> None:
    one = EngineStats(
        kv_used_blocks=3, kv_total_blocks=10, prefix_disk_bytes=700, adapter_names=("a", "b")
    )
    other = EngineStats(
        kv_used_blocks=1, kv_total_blocks=10, prefix_disk_bytes=800, adapter_names=("b",)
    )
    both = EngineStats.sum_of([one, other])
    assert (both.kv_used_blocks, both.kv_total_blocks, both.kv_usage) == (4, 20, 0.2)
    assert both.prefix_disk_bytes == 800
    assert both.adapter_names == ("a", "b")
    assert EngineStats.sum_of([]) == EngineStats()
