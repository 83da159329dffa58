"""Every port that a whole cluster opens, as someone without the token meets it."""

from pathlib import Path

import pytest

from tests.cluster.intruders import Slow, check_intruders, ports_of
from tests.cluster.rank import ranks
from tests.cluster.replica import Replica
from tests.server.serving import Server
from tests.thorough import long

pytestmark = pytest.mark.xdist_group("cluster")


@long
def test_no_port_answers_strangers(folder: Path, tmp_path: Path) -> None:
    """Two replicas that exchange blocks, one with a rank elsewhere, and one that computes prompts."""
    token, trap = tmp_path / "token", tmp_path / "trap"
    token.write_text("a secret of all machines")
    links = {"cluster_token_file": str(token)}
    with (
        ranks(folder, tmp_path, links, 1) as [rank],
        Replica(
            folder,
            tmp_path / "divided",
            token,
            more=f"--role both --tensor-parallel 2 --tensor-parallel-rank {rank.address}",
        ) as divided,
        Replica(folder, tmp_path / "prefill", token, more="--role prefill") as prefill,
        Server(
            folder,
            tmp_path / "server",
            replica=divided.address,
            prefill_replica=prefill.address,
            prefill_tokens=320,
            role="both",
            threads=1,
            kv_cache_tokens=32768,
            max_adapters=4,
            cluster_token_file=token,
        ) as server,
        server.client() as client,
    ):
        body = {"model": "tiny", "prompt": [9] * 400, "max_tokens": 20, "seed": 1}
        text = client.post("/v1/completions", json=body).json()["choices"][0]["text"]
        processes = [one.process.pid for one in (rank, divided, prefill, server)]
        ports = sorted(ports_of(*processes).keys() - {server.port})
        assert len(ports) == 6  # the rank, two replicas, and the blocks of three engines
        with Slow(ports, 70):
            check_intruders(ports, trap)
            again = client.post("/v1/completions", json=body).json()["choices"][0]["text"]
        assert again == text
        for log in (server.log, divided.log, prefill.log, (tmp_path / "rank-0").read_text()):
            assert "Traceback" not in log
