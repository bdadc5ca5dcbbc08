//! The rights of the read/write lock: what readers and writers do beside each other.

use leasehold::{LockGuard, Owner, ReadWriteLock};

use super::{locks::STEPS, *};

impl Life<'_> {
    fn shared(&self, client: &Client) -> ReadWriteLock {
        client.read_write_lock(&self.name)
    }

    async fn reads(&self, client: &Client) -> LockGuard {
        within(self.shared(client).read().lock_with(LEASE)).await.unwrap()
    }

    async fn writes(&self, client: &Client) -> LockGuard {
        within(self.shared(client).write().lock_with(LEASE)).await.unwrap()
    }
}

async fn read_beside_a_reader(life: &Life<'_>) -> Outcome {
    let _theirs = life.reads(life.peer).await;
    life.deny();
    let result = within(life.shared(life.locker).read().lock_with(LEASE)).await;
    life.judge(result.as_ref().map_err(Error::clone)).await
}

async fn leave_a_reader(life: &Life<'_>) -> Outcome {
    let (_theirs, guard) = (life.reads(life.peer).await, life.reads(life.locker).await);
    life.deny();
    life.judge(within(guard.unlock()).await).await
}

/// What has the longest lease goes: the lock is to end with the others.
async fn leave_a_reader_that_ends_sooner(life: &Life<'_>) -> Outcome {
    let _theirs = life.reads(life.peer).await;
    let guard = within(life.shared(life.locker).read().lock_with(LEASE * 10)).await.unwrap();
    life.deny();
    life.judge(within(guard.unlock()).await).await
}

/// The last that lives takes with it who died.
async fn leave_the_dead(life: &Life<'_>) -> Outcome {
    let guard = life.reads(life.locker).await;
    for node in &life.bench.nodes {
        if node.try_cmd(&["EXISTS", &life.name]).is_ok_and(|reply| reply == Reply::Int(1)) {
            node.cmd(&["HSET", &life.name, "dead:1", "1"]).ok();
        }
    }
    life.deny();
    life.judge(within(guard.unlock()).await).await
}

async fn extend_beside_a_reader(life: &Life<'_>) -> Outcome {
    let _theirs = within(life.shared(life.peer).read().lock_with(LEASE * 10)).await.unwrap();
    let guard = life.reads(life.locker).await;
    life.deny();
    life.judge(within(guard.extend(LEASE * 5)).await).await
}

/// One of the keys of a hold was deleted by somebody.
async fn extend_with_a_key_lost(life: &Life<'_>) -> Outcome {
    let (guard, _inner) = (life.reads(life.locker).await, life.reads(life.locker).await);
    for node in &life.bench.nodes {
        let keys = node.cmd(&["KEYS", &format!("*{}*rwlock_timeout:2", life.name)]).ok();
        for key in keys.items() {
            node.cmd(&["DEL", &key.text()]).ok();
        }
    }
    life.deny();
    life.judge(within(guard.extend(LEASE * 5)).await).await
}

async fn extend_both_modes(life: &Life<'_>) -> Outcome {
    let (guard, _read) = (life.writes(life.locker).await, life.reads(life.locker).await);
    life.deny();
    life.judge(within(guard.extend(LEASE * 5)).await).await
}

async fn read_what_one_writes(life: &Life<'_>) -> Outcome {
    let _guard = life.writes(life.locker).await;
    life.deny();
    let result = within(life.shared(life.locker).read().lock_with(LEASE)).await;
    life.judge(result.as_ref().map_err(Error::clone)).await
}

async fn give_back_the_read_of_a_writer(life: &Life<'_>) -> Outcome {
    let (_write, read) = (life.writes(life.locker).await, life.reads(life.locker).await);
    life.deny();
    life.judge(within(read.unlock()).await).await
}

async fn go_on_as_a_reader(life: &Life<'_>) -> Outcome {
    let write = within(life.shared(life.locker).write().lock_with(LEASE * 5)).await.unwrap();
    let _read = life.reads(life.locker).await;
    life.deny();
    life.judge(within(write.unlock()).await).await
}

async fn force_one_reader_of_two(life: &Life<'_>) -> Outcome {
    let theirs = within(life.shared(life.peer).read().lock_with(LEASE * 10)).await.unwrap();
    let other = life.shared(life.peer).read().owned_by(Owner::new());
    let _other = within(other.lock_with(LEASE)).await.unwrap();
    life.deny();
    let lock = life.shared(life.locker).read();
    life.judge(within(lock.force_unlock_if(&theirs.holder())).await).await
}

async fn force_all_readers(life: &Life<'_>) -> Outcome {
    let _theirs = life.reads(life.peer).await;
    let other = life.shared(life.peer).read().owned_by(Owner::new());
    let _other = within(other.lock_with(LEASE)).await.unwrap();
    life.deny();
    life.judge(within(life.shared(life.locker).read().force_unlock()).await).await
}

pub const BESIDE: &[Step] = steps! {
    read_beside_a_reader leave_a_reader leave_a_reader_that_ends_sooner leave_the_dead
    extend_beside_a_reader extend_with_a_key_lost extend_both_modes read_what_one_writes
    give_back_the_read_of_a_writer go_on_as_a_reader force_one_reader_of_two force_all_readers
};

/// R-21, I6, I14.
#[tokio::test]
async fn a_read_lock_lives_by_these_rights_and_does_nothing_by_half_without_one() {
    with_just_these_rights("read lock", STEPS, &["hdel"]).await;
}

/// R-21, I6, I14.
#[tokio::test]
async fn a_write_lock_lives_by_these_rights_and_does_nothing_by_half_without_one() {
    with_just_these_rights("write lock", STEPS, &["hdel", "set"]).await;
}

/// R-21, I6, I14.
#[tokio::test]
async fn readers_and_writers_live_by_these_rights_and_do_nothing_by_half_without_one() {
    with_just_these_rights("read/write lock", BESIDE, &["subscribe", "ping"]).await;
}
