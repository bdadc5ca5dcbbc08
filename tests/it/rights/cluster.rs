//! The rights of each synchronizer in a cluster.

use super::{locks, permits, read_write, *};
use crate::support::{blocking, cluster::ClusterSetup};

/// the names of the steps are spread over the nodes.
#[tokio::test]
async fn everything_lives_in_a_cluster_by_these_rights() {
    let cluster = blocking(ClusterSetup::start).await;
    for (kind, steps) in [
        ("lock", locks::STEPS),
        ("fair lock", locks::STEPS),
        ("fenced lock", locks::FENCED),
        ("spin lock", locks::STEPS),
        ("token lock", locks::TOKEN),
        ("read lock", locks::STEPS),
        ("write lock", locks::STEPS),
        ("read/write lock", read_write::BESIDE),
        ("semaphore", permits::counting::STEPS),
        ("permit semaphore", permits::expiring::STEPS),
        ("count-down latch", permits::latch::STEPS),
    ] {
        let nodes = cluster.nodes.iter().map(|node| node.raw()).collect();
        let mut bench = Bench::of(kind, nodes, cluster.url());
        bench.rules.extend(readme::in_a_cluster());
        let outcomes = bench.live(steps, None, "app:all").await;
        assert!(outcomes.iter().all(|outcome| *outcome == Done), "{kind}");
        assert_eq!(bench.denied(), [""; 0], "{kind}");
    }
}
