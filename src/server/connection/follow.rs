//! Leaves a server that is not, or no longer, the primary, so that fred looks for the one that is.
//!
//! By QUIT: the server answers it, closes, and drops what came behind. So what is in flight fails
//! as on any broken connection, where fred would have sent it again if it were told to reconnect.
//! And one at a time: fred can reconnect by itself at such replies, but then it gives that reply to
//! all that is in flight, also to what has run.

use super::fence::closed_for_good;
use super::{Connection, Place};
use fred::prelude::*;
use fred::types::{ClusterHash, CustomCommand};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;

/// How often a server is left that sentinels do not name any more: one of them may still name it.
const TRIES: u32 = 50;

/// How long such a try is given.
const TRY: Duration = Duration::from_millis(100);

/// Longest time between two looks for another server, where there may be none for minutes.
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// Follows the primary for as long as the connection is open.
pub(super) async fn follow(connection: Arc<Connection>) {
    let mut closed = connection.phase.subscribe();
    let mut primary = connection.contact.primary();
    let mut pause = Pause::default();
    let follow = async {
        loop {
            tokio::select! {
                changed = primary.changed() => match changed {
                    Ok(()) => connection.go_to(&mut primary).await,
                    Err(_) => return,
                },
                () = connection.moved.notified() => {
                    let epoch = connection.phase.borrow().epoch;
                    tokio::time::sleep(pause.next(Instant::now())).await;
                    let same = connection.phase.borrow().epoch == epoch;
                    if same && connection.misplaced.swap(false, Ordering::Relaxed) {
                        tracing::info!(role = connection.role, "the server is not a primary");
                        connection.leave().await;
                    }
                }
            }
        }
    };
    tokio::select! {
        () = closed_for_good(&mut closed) => {}
        () = follow => {}
    }
}

/// The time between two looks for a primary: none before the first, then longer and longer.
#[derive(Default)]
struct Pause {
    length: Duration,
    last: Option<Instant>,
}

impl Pause {
    fn next(&mut self, now: Instant) -> Duration {
        if self.last.is_none_or(|last| now.duration_since(last) > 5 * LONGEST_PAUSE) {
            self.length = Duration::ZERO;
        }
        self.last = Some(now);
        let pause = self.length.mul_f64(0.5 + fastrand::f64() / 2.0);
        self.length = (self.length * 2).clamp(Duration::from_millis(100), LONGEST_PAUSE);
        pause
    }
}

impl Connection {
    /// Sees to it that the connection is to the server that is named.
    async fn go_to(&self, primary: &mut watch::Receiver<Option<Place>>) {
        for _ in 0..TRIES {
            let Some((host, port)) = primary.borrow_and_update().clone() else { return };
            let servers = self.client.active_connections();
            if servers.iter().any(|server| *server.host == *host && server.port == port) {
                return;
            }
            if self.client.is_connected() {
                tracing::info!(role = self.role, host, port, "the primary is another server now");
                self.leave().await;
                // Without the right to CLIENT ID nobody knows where we are: once must do.
                if servers.is_empty() {
                    return;
                }
            }
            tokio::time::sleep(TRY).await;
        }
    }

    /// Has the server close the connection.
    async fn leave(&self) {
        let quit = CustomCommand::new_static("QUIT", ClusterHash::Custom(0), false);
        let options = self.client.with_options(&self.options);
        let left: Result<Value, _> = options.custom(quit, Vec::<Value>::new()).await;
        if let Err(error) = left {
            tracing::debug!(role = self.role, %error, "QUIT got no answer");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_look_for_a_primary_is_at_once_and_later_ones_are_rare() {
        let (mut pause, mut now) = (Pause::default(), Instant::now());
        for _ in 0..2 {
            let looks: Vec<_> = (0..8).map(|_| pause.next(now)).collect();
            assert_eq!(looks[0], Duration::ZERO);
            assert!(looks[1] >= Duration::from_millis(50) && looks[7] >= LONGEST_PAUSE / 2);
            assert!(looks.iter().all(|look| *look <= LONGEST_PAUSE));
            now += 6 * LONGEST_PAUSE;
        }
    }
}
