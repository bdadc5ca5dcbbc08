//! How long a hold stands: leases, and the local deadline that ends them in time.
//!
//! A deadline counts from the moment the request that granted or renewed the hold was sent, on a
//! clock that goes on while the machine sleeps, and ends a margin before the server's TTL. So a
//! holder knows of its loss before anyone else can hold the lock, as far as both clocks run at the
//! same rate.

use crate::error::Error;
use parking_lot::Mutex;
use std::time::{Duration, Instant};

/// The shortest lease accepted; a shorter one would be over before its reply is read.
pub const SHORTEST_LEASE: Duration = Duration::from_millis(10);

/// The longest lease accepted: ten years.
pub const LONGEST_LEASE: Duration = Duration::from_millis(315_576_000_000);

/// How long a hold stands unless it is given back.
///
/// A [`Duration`] converts into a fixed lease, so `try_lock(wait, Duration::from_secs(30))` reads
/// like Redisson's `tryLock(wait, lease)`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Lease {
    /// Kept alive for as long as its guard lives (Redisson's watchdog): the server's TTL is the
    /// client's [`watchdog`](crate::Builder::watchdog), renewed at a third of it.
    #[default]
    Renewed,
    /// Ends by itself after this time, between [`SHORTEST_LEASE`] and [`LONGEST_LEASE`].
    Fixed(Duration),
}

impl From<Duration> for Lease {
    fn from(lease: Duration) -> Self {
        Self::Fixed(lease)
    }
}

impl Lease {
    /// The TTL to ask the server for.
    pub(crate) fn length(self, watchdog: Duration) -> Result<Duration, Error> {
        match self {
            Self::Renewed => Ok(watchdog),
            Self::Fixed(lease) => check("lease", lease).map(|()| lease),
        }
    }
}

/// Refuses leases the server or the clock cannot keep.
pub(crate) fn check(what: &str, lease: Duration) -> Result<(), Error> {
    if lease < SHORTEST_LEASE {
        return Err(Error::invalid_duration(what, lease, "the shortest is 10 ms"));
    }
    if lease > LONGEST_LEASE {
        return Err(Error::invalid_duration(what, lease, "the longest is ten years"));
    }
    Ok(())
}

/// A moment on the clock that counts suspended time too, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Moment(u64);

impl Moment {
    pub(crate) const NEVER: Self = Self(u64::MAX);

    pub(crate) fn now() -> Self {
        #[cfg(any(target_os = "linux", target_os = "android"))]
        const CLOCK: rustix::time::ClockId = rustix::time::ClockId::Boottime;
        // Elsewhere the monotonic clock is the best there is; on macOS it counts sleep as well.
        #[cfg(not(any(target_os = "linux", target_os = "android")))]
        const CLOCK: rustix::time::ClockId = rustix::time::ClockId::Monotonic;
        let now = rustix::time::clock_gettime(CLOCK);
        // Neither part is negative on a clock that starts at boot.
        Self(now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64)
    }

    pub(crate) fn from_raw(raw: u64) -> Self {
        Self(raw)
    }

    pub(crate) fn raw(self) -> u64 {
        self.0
    }

    pub(crate) fn saturating_add(self, time: Duration) -> Self {
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        Self(self.0.saturating_add(nanos))
    }

    /// Time from `self` to `later`; zero if that has passed.
    pub(crate) fn until(self, later: Self) -> Duration {
        Duration::from_nanos(later.0.saturating_sub(self.0))
    }

    /// The same moment on std's clock: always the same one, unless the machine slept meanwhile.
    pub(crate) fn to_instant(self) -> Instant {
        let (moment, instant) = anchor();
        if self >= moment {
            let far = Duration::from_secs(86_400 * 365 * 30);
            instant + moment.until(self).min(far)
        } else {
            instant.checked_sub(self.until(moment)).unwrap_or(instant)
        }
    }
}

/// One moment on both clocks. std's stands still while the machine sleeps; then it is taken anew.
fn anchor() -> (Moment, Instant) {
    static ANCHOR: Mutex<Option<(Moment, Instant)>> = Mutex::new(None);
    // In this order: should the thread be stopped in between, no deadline is told too late.
    let instant = Instant::now();
    let now = (Moment::now(), instant);
    let mut anchor = ANCHOR.lock();
    let (moment, instant) = anchor.get_or_insert(now);
    let apart = moment.until(now.0).abs_diff(now.1.saturating_duration_since(*instant));
    // Between the two readings of one pair a thread may be stopped for a moment.
    if apart > Duration::from_millis(100) {
        *anchor = Some(now);
        return now;
    }
    (*moment, *instant)
}

/// When a hold asked for at `sent` ends for its holder: a hundredth of the lease and 2 ms early,
/// for clocks that run at slightly different rates.
pub(crate) fn deadline(sent: Moment, lease: Duration) -> Moment {
    sent.saturating_add(lease - lease / 100 - Duration::from_millis(2))
}

/// The lease as the server takes it.
pub(crate) fn millis(lease: Duration) -> u64 {
    u64::try_from(lease.as_millis()).expect("leases are checked to be at most ten years")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadline_comes_before_the_lease_ends() {
        let sent = Moment::now();
        let left = sent.until(deadline(sent, Duration::from_secs(30)));
        assert_eq!(left, Duration::from_millis(30_000 - 300 - 2));
        let left = sent.until(deadline(sent, SHORTEST_LEASE));
        assert_eq!(left, Duration::from_micros(7_900));
    }

    #[test]
    fn leases_out_of_bounds_are_refused() {
        let watchdog = Duration::from_secs(30);
        for bad in [Duration::ZERO, Duration::from_millis(1), Duration::MAX] {
            assert!(Lease::Fixed(bad).length(watchdog).is_err(), "{bad:?}");
        }
        for good in [SHORTEST_LEASE, LONGEST_LEASE] {
            assert_eq!(Lease::Fixed(good).length(watchdog).unwrap(), good);
        }
        assert_eq!(Lease::Renewed.length(watchdog).unwrap(), watchdog);
    }

    #[test]
    fn a_moment_is_always_the_same_instant() {
        let moment = Moment::now().saturating_add(Duration::from_secs(30));
        let instant = moment.to_instant();
        assert!((0..1000).all(|_| moment.to_instant() == instant));
    }

    #[test]
    fn moments_far_away_do_not_overflow() {
        assert_eq!(Moment::now().saturating_add(Duration::MAX), Moment::NEVER);
        let _ = Moment::NEVER.to_instant();
        let _ = Moment::from_raw(0).to_instant();
        assert_eq!(Moment::NEVER.until(Moment::now()), Duration::ZERO);
    }
}
