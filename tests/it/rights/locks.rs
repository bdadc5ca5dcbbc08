//! The rights of each lock that one has at a time.

use leasehold::{Lock, LockGuard, LostReason};

use super::*;

impl Life<'_> {
    /// A handle of the kind that the life is of. Whoever reads is in the way of whoever writes.
    fn lock_of(&self, client: &Client, is_locker: bool) -> Lock {
        match self.bench.kind {
            "lock" => client.lock(&self.name),
            "fair lock" => client.fair_lock(&self.name),
            "fenced lock" => (*client.fenced_lock(&self.name)).clone(),
            "spin lock" => client.spin_lock(&self.name),
            "token lock" => client.token_lock(&self.name),
            "read lock" if is_locker => client.read_write_lock(&self.name).read(),
            "write lock" if !is_locker => client.read_write_lock(&self.name).read(),
            "read lock" | "write lock" => client.read_write_lock(&self.name).write(),
            other => panic!("no lock: {other}"),
        }
    }

    fn lock(&self) -> Lock {
        self.lock_of(self.locker, true)
    }

    fn peers_lock(&self) -> Lock {
        self.lock_of(self.peer, false)
    }

    async fn held(&self) -> LockGuard {
        within(self.lock().lock_with(LEASE)).await.unwrap()
    }

    async fn held_by_peer(&self) -> LockGuard {
        within(self.peers_lock().lock_with(LEASE)).await.unwrap()
    }

    /// The handle of the locker on what the peer has.
    fn theirs(&self) -> Lock {
        self.lock_of(self.locker, false)
    }
}

async fn take(life: &Life<'_>) -> Outcome {
    life.deny();
    let result = within(life.lock().lock_with(LEASE)).await;
    life.judge(result.as_ref().map_err(Error::clone)).await
}

async fn is_refused(life: &Life<'_>) -> Outcome {
    let _theirs = life.held_by_peer().await;
    life.deny();
    let result = within(life.lock().try_lock_now()).await;
    assert!(!matches!(result, Ok(Some(_))));
    life.judge(result).await
}

async fn nest(life: &Life<'_>) -> Outcome {
    let _guard = life.held().await;
    life.deny();
    let result = within(life.lock().lock_with(LEASE)).await;
    life.judge(result.as_ref().map_err(Error::clone)).await
}

async fn leave_nested(life: &Life<'_>) -> Outcome {
    let (_guard, inner) = (life.held().await, life.held().await);
    life.deny();
    life.judge(within(inner.unlock()).await).await
}

async fn extend(life: &Life<'_>) -> Outcome {
    let guard = life.held().await;
    life.deny();
    let result = within(guard.extend(LEASE * 10)).await;
    life.judge(result).await
}

/// Which a lease that somebody persisted gets back.
async fn heal(life: &Life<'_>) -> Outcome {
    let guard = life.held().await;
    for node in &life.bench.nodes {
        node.try_cmd(&["PERSIST", &life.name]).unwrap();
    }
    life.deny();
    let result = within(guard.extend(LEASE)).await;
    life.judge(result).await
}

async fn look(life: &Life<'_>) -> Outcome {
    let _theirs = life.held_by_peer().await;
    life.deny();
    let lock = life.theirs();
    let results = [
        within(lock.is_locked()).await,
        within(lock.holder()).await.map(|holder| holder.is_some()),
    ];
    let [first, second] = results.map(|result| life.outcome(&result));
    assert_eq!(first, second);
    life.judge(within(lock.remaining_lease()).await).await
}

/// And is woken.
async fn wait(life: &Life<'_>) -> Outcome {
    let theirs = life.held_by_peer().await;
    life.deny();
    let waiter = tokio::spawn(life.lock().try_lock(SOON, LEASE));
    life.asleep(&waiter).await;
    if waiter.is_finished() {
        return life.judge(waiter.await.unwrap()).await;
    }
    within(theirs.unlock()).await.unwrap();
    let result = within(waiter).await.unwrap();
    assert!(!matches!(result, Ok(None)), "it was not woken");
    life.judge_late(&result)
}

/// Who may not leave a line is dead in it four seconds later.
async fn wait_in_vain(life: &Life<'_>) -> Outcome {
    let _theirs = life.held_by_peer().await;
    life.deny();
    let result = within(life.lock().try_lock(BRIEF, LEASE)).await;
    assert!(!matches!(result, Ok(Some(_))));
    let queue = format!("redisson_lock_queue:{{{}}}", life.name);
    let node = &life.bench.nodes[0];
    if life.missing.is_some() && result.is_ok() && node.cmd(&["EXISTS", &queue]).int() == 1 {
        let records = format!("leasehold_fair:{{{}}}", life.name);
        assert!(node.cmd(&["PTTL", &records]).int() > 0, "without {:?}", life.missing);
        return Lingering;
    }
    life.judge(result).await
}

async fn unlock(life: &Life<'_>) -> Outcome {
    let guard = life.held().await;
    life.deny();
    life.judge(within(guard.unlock()).await).await
}

async fn unlock_before_a_waiter(life: &Life<'_>) -> Outcome {
    let guard = life.held().await;
    let holder = guard.holder();
    let waiter = tokio::spawn(life.peers_lock().try_lock(SOON, LEASE));
    life.asleep(&waiter).await;
    life.deny();
    let outcome = life.outcome(&within(guard.unlock()).await);
    if outcome == Denied {
        let seen = within(life.lock_of(life.peer, true).holder()).await.unwrap();
        assert_eq!(seen, Some(holder), "without {:?}", life.missing);
        life.bench.grant_all_but(None);
    }
    let theirs = within(waiter).await.unwrap().unwrap();
    assert!(theirs.is_some_and(|guard| guard.is_held()), "without {:?}", life.missing);
    outcome
}

async fn force(life: &Life<'_>) -> Outcome {
    let _theirs = life.held_by_peer().await;
    life.deny();
    life.judge(within(life.theirs().force_unlock()).await).await
}

async fn force_one(life: &Life<'_>) -> Outcome {
    let theirs = life.held_by_peer().await;
    life.deny();
    life.judge(within(life.theirs().force_unlock_if(&theirs.holder())).await).await
}

async fn look_at_the_token(life: &Life<'_>) -> Outcome {
    let _theirs = life.held_by_peer().await;
    life.deny();
    life.judge(within(life.locker.fenced_lock(&life.name).last_token()).await).await
}

/// By itself, on a connection of its own, and told when it is taken away. With all rights only.
async fn be_renewed(life: &Life<'_>) -> Outcome {
    if life.missing.is_some() {
        return Done;
    }
    let builder = Client::builder(&life.bench.url).unwrap().watchdog(Duration::from_secs(3));
    let client = within(builder.connect()).await.unwrap();
    let guard = within(life.lock_of(&client, true).lock()).await.unwrap();
    let before = guard.valid_until();
    eventually("it is renewed", async || guard.valid_until() > before).await;
    assert!(within(life.lock_of(life.peer, true).force_unlock()).await.unwrap());
    assert_eq!(within(guard.lost()).await, LostReason::Removed);
    within(client.close()).await;
    Done
}

pub const STEPS: &[Step] = steps! {
    take is_refused nest leave_nested extend heal look wait wait_in_vain unlock
    unlock_before_a_waiter force force_one be_renewed
};

pub const FENCED: &[Step] = steps! {
    take is_refused nest leave_nested extend heal look wait wait_in_vain unlock
    unlock_before_a_waiter force force_one look_at_the_token be_renewed
};

/// It is not entered twice.
pub const TOKEN: &[Step] = steps! {
    take is_refused extend heal look wait wait_in_vain unlock unlock_before_a_waiter force force_one
    be_renewed
};

/// R-21, I6.
#[tokio::test]
async fn a_lock_lives_by_these_rights_and_does_nothing_by_half_without_one() {
    let suffering = with_just_these_rights("lock", STEPS, &[]).await;
    // What README says of single rights.
    let untold = ["unlock", "unlock_before_a_waiter", "force", "force_one"];
    assert_eq!(suffering["+publish"], untold.map(|step| (step, Untold)));
    for (right, steps) in [
        ("+hlen", &["force", "force_one"][..]),
        ("+del", &["force", "force_one"]),
        ("+hgetall", &["look"]),
        ("+hdel", &["unlock", "unlock_before_a_waiter"]),
        ("+hexists", &["extend", "heal", "force_one"]),
        ("+subscribe", &["wait", "wait_in_vain"]),
        ("+hincrby", &["take", "nest", "leave_nested", "wait"]),
    ] {
        let denied: Vec<_> = steps.iter().map(|step| (*step, Denied)).collect();
        assert_eq!(suffering[right], denied, "{right}");
    }
}

/// R-21, I6.
#[tokio::test]
async fn a_fair_lock_lives_by_these_rights_and_does_nothing_by_half_without_one() {
    let rare = ["exists", "linsert", "lpush", "zmscore", "zrange", "zremrangebyrank"];
    with_just_these_rights("fair lock", STEPS, &rare).await;
}

/// R-21, I3, I6: and draws no token in vain.
#[tokio::test]
async fn a_fenced_lock_lives_by_these_rights_and_does_nothing_by_half_without_one() {
    with_just_these_rights("fenced lock", FENCED, &[]).await;
}

/// R-21, I6.
#[tokio::test]
async fn a_spin_lock_lives_by_these_rights_and_does_nothing_by_half_without_one() {
    with_just_these_rights("spin lock", STEPS, &[]).await;
}

/// R-21, I6.
#[tokio::test]
async fn a_token_lock_lives_by_these_rights_and_does_nothing_by_half_without_one() {
    with_just_these_rights("token lock", TOKEN, &[]).await;
}
