//! MOVED, ASK and TRYAGAIN, each said by a real server, and none of them shown to anybody.

use std::collections::BTreeMap;

use futures::future::join_all;
use leasehold::{ErrorKind, Refusal};

use super::*;
use crate::support::assert_every_key_has_ttl;

/// Who holds a name, as a node has it.
fn holders(node: &RedisServer, name: &str) -> BTreeMap<String, String> {
    node.raw().cmd(&["HGETALL", name]).ok().map()
}

/// whatever the first call after the move is.
#[tokio::test]
async fn a_slot_that_has_moved_is_found_by_the_next_call() {
    let cluster = start().await;
    let (client, other) = (connect(&cluster).await, connect(&cluster).await);
    for (i, prefix) in ["free", "held", "looked at", "forced"].into_iter().enumerate() {
        let name = cluster.name_at(0, prefix);
        let lock = client.lock(&name);
        live(&client, &other, &name).await;
        let held = within(lock.lock_with(HOUR)).await.unwrap();
        let before = refused(&cluster.nodes[0].raw(), "MOVED");
        cluster.move_slot(cluster.slot_of(&name), 1 + i % 2);
        match i {
            0 | 1 => within(held.unlock()).await.unwrap(),
            2 => {
                assert_eq!(within(lock.holder()).await.unwrap(), Some(held.holder()));
                within(held.unlock()).await.unwrap();
            }
            _ => {
                assert!(within(lock.force_unlock()).await.unwrap());
                drop(held);
            }
        }
        assert!(refused(&cluster.nodes[0].raw(), "MOVED") > before, "it was asked in vain");
        live(&client, &other, &name).await;
    }
    eventually("all is given back", async || keys(&cluster) == 0).await;
}

/// a lock that is not there yet is taken where the slot goes to, and renewed there.
#[tokio::test]
async fn a_free_lock_of_a_slot_that_moves_is_taken_at_its_new_node() {
    let cluster = start().await;
    let builder = Client::builder(cluster.url()).unwrap().watchdog(Duration::from_secs(3));
    let client = within(builder.connect()).await.unwrap();
    let name = cluster.name_at(0, "job");
    let slot = cluster.slot_of(&name);
    cluster.begin_move(slot, 1);
    let guard = within(client.lock(&name).lock()).await.unwrap();
    let imported = ["CLUSTER", "GETKEYSINSLOT", &slot.to_string(), "10"];
    let imported = cluster.nodes[1].raw().cmd(&imported).ok();
    assert_eq!(imported.items().iter().map(|key| key.text()).collect::<Vec<_>>(), [&*name]);
    let asks = || refused(&cluster.nodes[0].raw(), "ASK");
    let (asked, before) = (asks(), guard.valid_until());
    assert!(asked > 0, "it was sent on");
    let later = before + Duration::from_millis(1500);
    eventually("it is renewed, twice", async || guard.valid_until() > later).await;
    assert!(asks() > asked, "renewals were sent on, too");
    cluster.end_move(slot, 1);
    let holder = guard.holder().as_str().to_owned();
    assert_eq!(holders(&cluster.nodes[1], &name), BTreeMap::from([(holder, "1".to_owned())]));
    every_node(&cluster).for_each(|node| assert_every_key_has_ttl(&node));
    within(guard.unlock()).await.unwrap();
    assert_eq!(keys(&cluster), 0);
}

/// I2: where ASK was followed by fred, replies to other calls of the target went astray.
#[tokio::test(flavor = "multi_thread")]
async fn redirections_amid_traffic_mix_up_no_replies() {
    let cluster = start().await;
    let client = connect(&cluster).await;
    let name = cluster.name_at(0, "moving");
    let slot = cluster.slot_of(&name);
    let busy: Vec<_> = (0..16).map(|i| cluster.name_at(1, &format!("busy:{i}"))).collect();
    cluster.begin_move(slot, 1);
    let stop = Arc::new(AtomicBool::new(false));
    let tasks = busy.into_iter().map(|name| {
        let (client, stop) = (client.clone(), stop.clone());
        let node = cluster.node_of(&name).raw();
        tokio::spawn(async move {
            let mut rounds = 0;
            while !stop.load(Ordering::Relaxed) {
                let guard = client.lock(&name).lock_with(LEASE).await.unwrap();
                let count = node.cmd(&["HGET", &name, guard.holder().as_str()]);
                assert_eq!(count.int(), 1, "it is held who was told so");
                guard.unlock().await.unwrap();
                rounds += 1;
            }
            rounds
        })
    });
    let tasks: Vec<_> = tasks.collect();
    for round in 0..10 {
        let tagged: Vec<_> = (0..64).map(|i| format!("{{{name}}}:{round}:{i}")).collect();
        let acquires = tagged.iter().map(|name| client.lock(name).lock_with(LEASE));
        let guards = within(join_all(acquires)).await.into_iter().map(Result::unwrap);
        guards.for_each(|guard| guard.forget());
        let locks: Vec<_> = tagged.iter().map(|name| client.lock(name)).collect();
        let again = locks.iter().map(|lock| lock.is_locked());
        assert!(within(join_all(again)).await.into_iter().all(Result::unwrap), "each is there");
    }
    stop.store(true, Ordering::Relaxed);
    for task in tasks {
        assert!(within(task).await.unwrap() > 0, "there was traffic");
    }
    assert!(refused(&cluster.nodes[0].raw(), "ASK") > 100, "many were sent on");
}

/// what has some of its keys on either side waits until they are together again.
#[tokio::test]
async fn calls_whose_keys_are_torn_apart_wait_until_the_slot_has_moved() {
    let cluster = start().await;
    let client = connect(&cluster).await;
    let name = cluster.name_at(0, "job");
    let slot = cluster.slot_of(&name);
    let tagged = |kind: &str| format!("{{{name}}}:{kind}");
    let held = within(client.lock(&name).lock_with(HOUR)).await.unwrap();
    let semaphore = client.permit_semaphore(tagged("permits"));
    assert!(within(semaphore.try_set(2)).await.unwrap());
    let permit = within(semaphore.acquire()).await.unwrap();
    cluster.begin_move(slot, 1);
    // Of the semaphore's keys one goes ahead; of the lock's, the channel was never anywhere.
    cluster.move_keys(slot, 1, &[semaphore.name()]);
    let unlocking = tokio::spawn(held.unlock());
    let releasing = tokio::spawn(permit.release());
    let fenced = tokio::spawn(client.fenced_lock(tagged("fenced")).lock_with(LEASE));
    eventually("both sides send some away", async || {
        (0..2).all(|node| refused(&cluster.nodes[node].raw(), "TRYAGAIN") > 2)
    })
    .await;
    assert!(!unlocking.is_finished() && !releasing.is_finished() && !fenced.is_finished());
    cluster.end_move(slot, 1);
    within(unlocking).await.unwrap().unwrap();
    within(releasing).await.unwrap().unwrap();
    within(within(fenced).await.unwrap().unwrap().unlock()).await.unwrap();
    assert_eq!(within(semaphore.permits()).await.unwrap().unwrap().available, 2);
    assert!(!within(client.lock(&name).is_locked()).await.unwrap());
}

/// I10: who does not wait is told, and what; a wait with a limit ends by it.
#[tokio::test]
async fn a_try_that_cannot_be_made_while_a_slot_moves_says_so() {
    let cluster = start().await;
    let client = connect(&cluster).await;
    let name = cluster.name_at(0, "job");
    let fenced = client.fenced_lock(&name);
    cluster.begin_move(cluster.slot_of(&name), 1);
    let error = within(fenced.try_lock(Duration::from_millis(200), LEASE)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    let error = within(fenced.last_token()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Refused(Refusal::Cluster), "{error}");
    cluster.end_move(cluster.slot_of(&name), 1);
    within(within(fenced.lock_with(LEASE)).await.unwrap().unlock()).await.unwrap();
}
