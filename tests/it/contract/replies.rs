//! A reply that is lost is neither a command lost nor one counted twice.
use std::time::Duration;

use tokio::time::timeout;

use super::{
    setup::{HANG, Setup, got, scripts_for},
    subjects::{Synchronizer, Taken},
};
use crate::support::proxy::{Fault, Proxy};

/// Loses the reply of the next script for a name, and the connection with it or not.
fn lose(proxy: &Proxy, name: &str, cut: bool) -> Fault {
    match cut {
        false => proxy.drop_reply(scripts_for(name), 1),
        true => proxy.drop_reply_and_cut(scripts_for(name)),
    }
}

/// A client that soon gives up a reply.
async fn setup<S: Synchronizer>() -> Setup {
    Setup::with::<S>(|builder| builder.command_timeout(Duration::from_millis(200))).await
}

/// R-25, I5, I11, I15.
pub async fn an_acquire_whose_reply_is_lost_counts_once<S: Synchronizer>() {
    let setup = setup::<S>().await;
    for cut in [false, true] {
        let lost = lose(&setup.proxy, &setup.name, cut);
        let taken = got(S::of(&setup.one, &setup.name).take()).await;
        lost.happened(1).await;
        setup.assert_taken::<S>(1).await;
        got(taken.give_back()).await;
        setup.assert_free::<S>(&format!("cut: {cut}")).await;
    }
}

/// R-26, I5, I15: nor does it give back what others have taken since.
pub async fn a_give_back_whose_reply_is_lost_counts_once<S: Synchronizer>() {
    let setup = setup::<S>().await;
    for cut in [false, true] {
        let taken = got(S::of(&setup.one, &setup.name).take()).await;
        let lost = lose(&setup.proxy, &setup.name, cut);
        let giving = tokio::spawn(taken.give_back());
        lost.happened(1).await;
        let occupied = setup.occupy::<S>().await;
        super::setup::joined(giving).await;
        setup.assert_taken::<S>(S::CAPACITY).await;
        occupied.give_back().await.expect("nobody touched it");
        setup.assert_free::<S>(&format!("cut: {cut}")).await;
    }
}

/// R-25, I11: what a try got without hearing of it is given back, and it says that it does not
/// know.
pub async fn a_try_without_a_reply_is_undone<S: Synchronizer>() {
    let setup = setup::<S>().await;
    let lost = setup.proxy.drop_reply(scripts_for(&setup.name), 100);
    let trying = S::of(&setup.one, &setup.name).try_take(Duration::ZERO);
    let tried = timeout(HANG, trying).await.expect("it ends");
    lost.happened(1).await;
    lost.stop();
    let error = tried.err().expect("no reply came");
    assert!(error.is_unavailable() && error.is_indeterminate(), "{error:?}");
    setup.assert_free::<S>("after a try without a reply").await;
}

/// R-28, I10, I11: of a server that says nothing any more, and then does again.
pub async fn a_try_of_a_silent_server_ends<S: Synchronizer>() {
    let setup = setup::<S>().await;
    setup.proxy.half_open(true);
    let trying = S::of(&setup.one, &setup.name).try_take(Duration::from_millis(100));
    let tried = timeout(HANG, trying).await.expect("it ends");
    let error = tried.err().expect("nobody answered");
    assert!(error.is_unavailable(), "{error:?}");
    setup.proxy.half_open(false);
    setup.assert_free::<S>("after a silence").await;
    got(S::of(&setup.one, &setup.name).take()).await.give_back().await.expect("it is held");
}
