"""Our pool and a peer's, side by side in one run: `make bench`.

The peer is the env server of verifiers: its own server, pool broker and client over ZMQ and msgpack. Each
side is a process of its own, the *driver*: it starts the side's broker and worker, and is their client.
Both stay alive through all rounds of a workload and play them in turns, so that what else goes on in the
machine meets both.

- `workloads`, `bars`: what is run and what is wanted, as tables
- `banks`, `environment`, `peer_path`: the work of an episode, the same for both
- `gauges`, `cancels`, `notes`, `load`: one round, and what is measured of it
- `driver`, `ours_driver`, `peer_driver`: a side's process; `ceiling`: that of our environment with no pool;
  `side`: the handle of each here
- `peer_home`: the peer's environment; `bench`: the rounds
- `figures`, `basis`, `headroom`, `why`, `cells`, `report`, `plot`: what comes of them

What the peer's process imports of this package is the standard library and numpy.
"""
