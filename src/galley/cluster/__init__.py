"""Several replicas of a model: on this machine, on others, and on Ray Serve."""

from typing import Any


def app(config: Any) -> Any:
    """Return a cluster as an application of Ray Serve: ``serve run galley.cluster:app config=FILE``.

    Args:
        config: the path of the cluster's YAML file, its contents as a mapping, or ``{"config": PATH}``.

    Raises:
        SettingsError: the file has a mistake, or the extra ``ray`` is not installed.
    """
    from galley.cluster.extra import require_ray

    require_ray()
    from galley.cluster.on_ray.build import cluster_app

    return cluster_app(config)
