//! Takes several locks, all or none, one after the other.
//!
//! All who do so in one order cannot wait for each other in a circle. What is held already is kept
//! renewed while the next is waited for. What is lost meanwhile takes the others with it, and all
//! begins anew.

use crate::engine::together::{Boxed, Part, Together};
use crate::error::Error;
use crate::lease::{self, Moment};
use std::time::Duration;

/// One of the locks.
pub(crate) trait Member: Sync {
    type Part: Part;

    /// Takes it, renewed for now; waits for so long, or without an end.
    fn take(&self, wait: Option<Duration>) -> Boxed<Result<Option<Self::Part>, Error>>;
    /// The error if it is lost again.
    fn lost(&self, reason: crate::error::LostReason) -> Error;
}

/// How collecting ended.
enum Collected<P> {
    All(Vec<P>),
    Refused,
    Lost(Error),
}

/// Takes all members; `None` if one of them could not be had by the deadline.
///
/// A fixed lease begins when the last is held. Dropping the future gives back what it got.
pub(crate) async fn take<M: Member>(
    members: &[M],
    deadline: Option<Moment>,
    fixed: Option<Duration>,
) -> Result<Option<Vec<M::Part>>, Error> {
    loop {
        let error = match collect(members, deadline).await? {
            Collected::Refused => return Ok(None),
            Collected::All(parts) => match begin(members, &parts, fixed).await {
                Ok(()) => return Ok(Some(parts)),
                Err(error) => error,
            },
            Collected::Lost(error) => error,
        };
        // What was lost on the way is asked for again; what went wrong otherwise is told.
        if !error.is_lost() || deadline.is_some_and(|deadline| Moment::now() >= deadline) {
            return Err(error);
        }
    }
}

async fn collect<M: Member>(
    members: &[M],
    deadline: Option<Moment>,
) -> Result<Collected<M::Part>, Error> {
    let mut parts: Vec<M::Part> = Vec::with_capacity(members.len());
    let mut lost = Together::new([]);
    for member in members {
        let wait = deadline.map(|deadline| Moment::now().until(deadline));
        let taken = tokio::select! {
            biased;
            taken = member.take(wait) => taken?,
            Some((at, reason)) = lost.next() => {
                return Ok(Collected::Lost(members[at].lost(reason)));
            }
        };
        let Some(part) = taken else { return Ok(Collected::Refused) };
        lost.push(part.lost());
        parts.push(part);
    }
    Ok(Collected::All(parts))
}

/// Begins a fixed lease, and sees that all are held.
async fn begin<M: Member>(
    members: &[M],
    parts: &[M::Part],
    fixed: Option<Duration>,
) -> Result<(), Error> {
    if let Some(lease) = fixed {
        // The first was asked for when the last was still waited for. Within a tenth of the lease
        // that is not worth a command.
        let least = lease::deadline(Moment::now(), lease - lease / 10);
        let short = parts.iter().filter(|part| part.valid_until() < least);
        let extending = Together::new(short.map(|part| part.extend(lease)));
        let all = extending.pending().count();
        extending.succeed(all).await?;
        parts.iter().for_each(Part::fix);
    }
    let now = Moment::now();
    match parts.iter().position(|part| part.valid_until() <= now) {
        Some(at) => Err(members[at].lost(crate::error::LostReason::Expired)),
        None => Ok(()),
    }
}
