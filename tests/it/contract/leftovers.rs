//! When all is over nothing is left: in Redis, of a process that died, and in memory.
use std::{any::type_name, env, path::Path, process::Stdio, sync::Arc, time::Duration};

use leasehold::Client;
use tokio::{process::Command, runtime::Handle};

use super::{
    setup::{HANG, SHORT, Setup, forgotten, got, is_one_of, joined},
    subjects::{Synchronizer, Taken},
};
use crate::support::{eventually, keys_without_ttl, server};

/// I6: at every moment, but for those keys that the docs name.
pub async fn every_key_has_a_ttl<S: Synchronizer>() {
    let setup = Setup::of::<S>().await;
    let mut forever = S::stand_forever(&setup.name);
    let look = |when: &str| {
        let keys = keys_without_ttl(&setup.raw);
        let other = keys.iter().find(|key| !is_one_of(key, &forever));
        assert_eq!(other, None, "it has no TTL {when}");
    };
    let occupied = setup.occupy::<S>().await;
    look("when it is taken");
    let waiting = setup.wait_in_vain::<S>().await;
    look("when somebody waits");
    occupied.give_back().await.expect("it is held");
    let taken = joined(waiting).await;
    look("when a waiter got it");
    got(taken.give_back()).await;
    look("when it was given back");
    let tried = got(S::of(&setup.one, &setup.name).try_take(Duration::ZERO)).await;
    drop(tried);
    setup.assert_free::<S>("after all that").await;
    // What stays for ever is what is documented to stay.
    forever.retain(|key| is_one_of(key, &S::stay(&setup.name)));
    let keys = keys_without_ttl(&setup.raw);
    assert!(keys.iter().all(|key| is_one_of(key, &forever)), "{keys:?}");
}

/// R-01, I6: what the docs say of a process that is killed while it has it.
pub async fn what_a_killed_process_had_comes_free<S: Synchronizer>() {
    let setup = Setup::of::<S>().await;
    let mut holder = other_process::<S>(&setup);
    eventually("it has it", async || setup.raw.cmd(&["EXISTS", READY]).int() == 1).await;
    holder.kill().await.expect("it runs until it is killed");
    let occupying = tokio::spawn(S::occupy(&setup.two, &setup.name));
    S::bury(&setup.two, &setup.name).await;
    joined(occupying).await.give_back().await.expect("it is held");
    setup.raw.cmd(&["DEL", READY]).ok();
    // What it knew of its own calls ends by itself.
    setup.assert_only_what_stays::<S>("after the dead").await;
}

const ORDER: &str = "LEASEHOLD_TEST_CONTRACT";
const READY: &str = "ready";

/// The test program itself, as a process that takes it and is killed.
fn other_process<S: Synchronizer>(setup: &Setup) -> tokio::process::Child {
    let module = module_path!().split_once("::").map_or("", |(_, inside)| inside);
    let test = module.replace("leftovers", "the_process_that_is_killed");
    let order = format!("{} {} {}", type_name::<S>(), setup.server.port(), setup.name);
    // By this name it is there even if it is being built anew.
    let running = Path::new("/proc/self/exe");
    let path = env::current_exe().expect("a test has a program");
    Command::new(if running.exists() { running } else { &path })
        .args(["--exact", &test])
        .env(ORDER, order)
        .stdout(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .expect("the test's own program starts")
}

/// In the other process: takes it if it is the one that was named.
pub async fn be_killed_with<S: Synchronizer>() {
    let Ok(order) = env::var(ORDER) else { return };
    let [subject, port, name] = order.split(' ').collect::<Vec<_>>()[..] else {
        panic!("no order: {order}")
    };
    if subject != type_name::<S>() {
        return;
    }
    let builder = Client::builder(format!("redis://127.0.0.1:{port}/")).expect("a URL");
    let client = builder.watchdog(SHORT).connect().await.expect("the server is up");
    let _taken = S::of(&client, name).take().await.expect("it is free");
    let port = port.parse().expect("a port");
    server::command(port, &["SET", READY, "1", "PX", "60000"]).expect("the server is up");
    // If nobody kills it: not for ever.
    tokio::time::sleep(HANG).await;
}

/// I12: uses, waits and futures that were dropped are forgotten while the client lives.
pub async fn what_is_over_is_forgotten<S: Synchronizer>() {
    let setup = Setup::with::<S>(|builder| builder.watchdog(SHORT)).await;
    let tasks = || Handle::current().metrics().num_alive_tasks();
    let label: Arc<str> = "a use".into();
    let handle = || S::of(&setup.one, &setup.name).labelled(label.clone());
    let before = tasks();
    let occupied = setup.occupy::<S>().await;
    let waiting = tokio::spawn(handle().take());
    let refused = got(handle().try_take(Duration::from_millis(20))).await;
    assert!(refused.is_none());
    let dropped = tokio::spawn(handle().take());
    tokio::task::yield_now().await;
    dropped.abort();
    drop(dropped.await);
    assert!(Arc::strong_count(&label) > 1, "it is remembered while somebody waits");
    occupied.give_back().await.expect("it is held");
    got(joined(waiting).await.give_back()).await;
    drop(got(handle().take()).await);
    forgotten("every use is forgotten", &label).await;
    // The one that keeps its subscriptions.
    eventually("its tasks have ended", async || tasks() <= before + 6).await;
}

/// I12: no task, no socket and no memory, of one that was closed and of one that was just dropped.
pub async fn of_a_dropped_client_nothing_is_left<S: Synchronizer>() {
    let setup = Setup::of::<S>().await;
    let tasks = || Handle::current().metrics().num_alive_tasks();
    let sockets = || setup.raw.cmd(&["CLIENT", "LIST"]).text().lines().count();
    let (tasks_before, sockets_before) = (tasks(), sockets());
    for closed in [false, true] {
        let alive = Arc::new(());
        let inside = alive.clone();
        let mapper = move |name: &str| {
            let _ = &inside;
            name.to_owned()
        };
        let builder = Client::builder(setup.server.url()).expect("a URL").watchdog(SHORT);
        let client = builder.name_mapper(mapper).connect().await.expect("the server is up");
        let occupied = setup.occupy::<S>().await;
        let waiting = tokio::spawn(S::of(&client, &setup.name).take());
        assert!(
            got(S::of(&client, &setup.name).try_take(Duration::from_millis(20))).await.is_none()
        );
        occupied.give_back().await.expect("it is held");
        let taken = joined(waiting).await;
        drop(taken);
        if closed {
            client.close().await;
        }
        drop(client);
        forgotten("the client is forgotten", &alive).await;
        eventually("its sockets are closed", async || sockets() == sockets_before).await;
        eventually("its tasks have ended", async || tasks() <= tasks_before).await;
        setup.assert_free::<S>(&format!("closed: {closed}")).await;
    }
}
