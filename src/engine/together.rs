//! Several futures at once, polled by whoever waits for them.
//!
//! No task is spawned: the owner of each stays the caller, with the caller's poll context, so that
//! what is taken together re-enters as what is taken alone.

use crate::error::{Error, LostReason};
use crate::lease::Moment;
use crate::server::Text;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

pub(crate) type Boxed<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// What is held as one of several.
pub(crate) trait Part: Send {
    /// Until when it is certainly held, if no further renewal succeeds.
    fn valid_until(&self) -> Moment;
    /// What the server calls it.
    fn field(&self) -> Text;
    /// Resolves when it is lost.
    fn lost(&self) -> Boxed<LostReason>;
    /// Makes it last for at least so long from now.
    fn extend(&self, lease: Duration) -> Boxed<Result<(), Error>>;
    /// Ends its renewal: a fixed lease begins.
    fn fix(&self);
}

/// Futures under way, each with its number; dropping this drops them.
pub(crate) struct Together<T>(Vec<Option<Boxed<T>>>);

impl<T> Together<T> {
    pub(crate) fn new(futures: impl IntoIterator<Item = Boxed<T>>) -> Self {
        Self(futures.into_iter().map(Some).collect())
    }

    pub(crate) fn push(&mut self, future: Boxed<T>) {
        self.0.push(Some(future));
    }

    /// The next to be through; `None` if all are.
    ///
    /// Dropping the future leaves the others as they are.
    pub(crate) async fn next(&mut self) -> Option<(usize, T)> {
        poll_fn(|cx| {
            let mut waiting = false;
            for (at, slot) in self.0.iter_mut().enumerate() {
                let Some(future) = slot else { continue };
                if let Poll::Ready(value) = future.as_mut().poll(cx) {
                    *slot = None;
                    return Poll::Ready(Some((at, value)));
                }
                waiting = true;
            }
            if waiting { Poll::Pending } else { Poll::Ready(None) }
        })
        .await
    }

    /// The numbers of those that are not through.
    pub(crate) fn pending(&self) -> impl Iterator<Item = usize> {
        self.0.iter().enumerate().filter(|(_, slot)| slot.is_some()).map(|(at, _)| at)
    }
}

impl<T> Together<Result<T, Error>> {
    /// Waits until so many have succeeded. If that many cannot, waits for all and says what went
    /// wrong first; a loss is told before anything else.
    pub(crate) async fn succeed(mut self, needed: usize) -> Result<(), Error> {
        let (mut done, mut first, mut lost) = (0, None, None);
        while done < needed {
            match self.next().await {
                Some((_, Ok(_))) => done += 1,
                Some((_, Err(error))) if error.is_lost() => lost = lost.or(Some(error)),
                Some((_, Err(error))) => first = first.or(Some(error)),
                None => return Err(lost.or(first).expect("fewer succeeded than were asked")),
            }
        }
        Ok(())
    }
}
