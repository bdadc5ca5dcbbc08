//! The rights of what is counted: permits, permits with a lease, and latches.

use leasehold::{CountDownLatch, LostReason, PermitId, PermitSemaphore, Semaphore};

use super::*;

/// The handles of a life.
impl Life<'_> {
    fn counting(&self, client: &Client) -> Semaphore {
        client.semaphore(&self.name)
    }

    fn expiring(&self, client: &Client) -> PermitSemaphore {
        client.permit_semaphore(&self.name).lease(LEASE)
    }

    fn latch(&self, client: &Client) -> CountDownLatch {
        client.count_down_latch(&self.name)
    }

    /// The node that has the name.
    fn node(&self) -> &Raw {
        let has = |node: &&Raw| {
            node.try_cmd(&["EXISTS", &self.name]).is_ok_and(|reply| reply == Reply::Int(1))
        };
        self.bench.nodes.iter().find(has).expect("somebody has it")
    }
}

/// Steps that permits with and without a lease have in common.
macro_rules! taking {
    ($handle:ident) => {
        use super::*;

        pub async fn set_up(life: &Life<'_>) -> Outcome {
            life.deny();
            life.judge(within(life.$handle(life.locker).try_set(3)).await).await
        }

        pub async fn set_up_again(life: &Life<'_>) -> Outcome {
            within(life.$handle(life.peer).try_set(3)).await.unwrap();
            life.deny();
            life.judge(within(life.$handle(life.locker).try_set(3)).await).await
        }

        pub async fn take(life: &Life<'_>) -> Outcome {
            within(life.$handle(life.peer).try_set(3)).await.unwrap();
            life.deny();
            let result = within(life.$handle(life.locker).acquire_many(2)).await;
            life.judge(result.as_ref().map_err(Error::clone)).await
        }

        pub async fn take_the_first(life: &Life<'_>) -> Outcome {
            life.deny();
            let result = within(life.$handle(life.locker).sized(3).acquire_many(2)).await;
            life.judge(result.as_ref().map_err(Error::clone)).await
        }

        pub async fn find_the_first_too_few(life: &Life<'_>) -> Outcome {
            life.deny();
            let result =
                within(life.$handle(life.locker).sized(1).try_acquire_many(2, Duration::ZERO))
                    .await;
            assert!(!matches!(result, Ok(Some(_))));
            life.judge(result).await
        }

        pub async fn is_refused(life: &Life<'_>) -> Outcome {
            let _theirs = within(life.$handle(life.peer).sized(1).acquire()).await.unwrap();
            life.deny();
            let result = within(life.$handle(life.locker).try_acquire_now()).await;
            assert!(!matches!(result, Ok(Some(_))));
            life.judge(result).await
        }

        /// And is woken.
        pub async fn wait(life: &Life<'_>) -> Outcome {
            let theirs = within(life.$handle(life.peer).sized(1).acquire()).await.unwrap();
            life.deny();
            let waiter = tokio::spawn(life.$handle(life.locker).try_acquire(SOON));
            life.asleep(&waiter).await;
            if waiter.is_finished() {
                return life.judge(waiter.await.unwrap()).await;
            }
            within(theirs.release()).await.unwrap();
            *life.before.borrow_mut() = life.state();
            let result = within(waiter).await.unwrap();
            assert!(!matches!(result, Ok(None)), "it was not woken");
            life.judge(result.as_ref().map_err(Error::clone)).await
        }

        pub async fn wait_in_vain(life: &Life<'_>) -> Outcome {
            let _theirs = within(life.$handle(life.peer).sized(1).acquire()).await.unwrap();
            life.deny();
            let result = within(life.$handle(life.locker).try_acquire(BRIEF)).await;
            assert!(!matches!(result, Ok(Some(_))));
            life.judge(result).await
        }

        pub async fn give_back(life: &Life<'_>) -> Outcome {
            let permit = within(life.$handle(life.locker).sized(3).acquire_many(2)).await.unwrap();
            life.deny();
            life.judge(within(permit.release()).await).await
        }

        pub async fn add(life: &Life<'_>) -> Outcome {
            within(life.$handle(life.peer).try_set(3)).await.unwrap();
            life.deny();
            life.judge(within(life.$handle(life.locker).add(2)).await).await
        }

        pub async fn take_away(life: &Life<'_>) -> Outcome {
            within(life.$handle(life.peer).try_set(3)).await.unwrap();
            life.deny();
            life.judge(within(life.$handle(life.locker).add(-5)).await).await
        }

        /// A call beside all holds settles the record of the one before it.
        pub async fn add_twice(life: &Life<'_>) -> Outcome {
            let semaphore = life.$handle(life.locker);
            within(semaphore.add(1)).await.unwrap();
            life.deny();
            life.judge(within(semaphore.add(1)).await).await
        }
    };
}

pub mod counting {
    taking! { counting }

    pub async fn give(life: &Life<'_>) -> Outcome {
        within(life.counting(life.peer).try_set(1)).await.unwrap();
        life.deny();
        life.judge(within(life.counting(life.locker).give(2)).await).await
    }

    pub async fn drain(life: &Life<'_>) -> Outcome {
        within(life.counting(life.peer).try_set(3)).await.unwrap();
        life.deny();
        life.judge(within(life.counting(life.locker).drain()).await).await
    }

    pub async fn look(life: &Life<'_>) -> Outcome {
        within(life.counting(life.peer).try_set(3)).await.unwrap();
        life.deny();
        life.judge(within(life.counting(life.locker).available()).await).await
    }

    pub const STEPS: &[Step] = steps! {
        set_up set_up_again take take_the_first find_the_first_too_few is_refused wait wait_in_vain
        give_back add take_away add_twice give drain look
    };
}

pub mod expiring {
    taking! { expiring }

    const ENDED: &str = "0123456789abcdef";

    /// A permit whose holder died is out.
    async fn one_has_ended(life: &Life<'_>) {
        within(life.expiring(life.peer).try_set(3)).await.unwrap();
        let deadlines = format!("{{{}}}:timeout", life.name);
        life.node().cmd(&["ZADD", &deadlines, "1000", ENDED]).ok();
        life.node().cmd(&["DECR", &life.name]).ok();
    }

    /// As [`Life::judge`], where the ended permit may be left to who looks next.
    async fn judge(life: &Life<'_>, result: Result<(), Error>) -> Outcome {
        let deadlines = format!("{{{}}}:timeout", life.name);
        let node = life.node();
        if result.is_ok() && !node.cmd(&["ZSCORE", &deadlines, ENDED]).is_nil() {
            let [free, out] =
                [["GET", &life.name], ["ZCARD", &deadlines]].map(|c| node.cmd(&c).int());
            assert_eq!(free + out, 3, "without {:?}", life.missing);
            return Lingering;
        }
        life.judge(result).await
    }

    pub async fn take_what_has_ended(life: &Life<'_>) -> Outcome {
        one_has_ended(life).await;
        life.deny();
        let result = within(life.expiring(life.locker).acquire_many(3)).await;
        life.judge(result.as_ref().map_err(Error::clone)).await
    }

    pub async fn take_from_one_that_ends(life: &Life<'_>) -> Outcome {
        within(life.expiring(life.peer).try_set(3)).await.unwrap();
        life.node().cmd(&["PEXPIRE", &life.name, "100000"]).ok();
        life.deny();
        let result = within(life.expiring(life.locker).acquire_many(3)).await;
        life.judge(result.as_ref().map_err(Error::clone)).await
    }

    pub async fn give_back_beside_what_has_ended(life: &Life<'_>) -> Outcome {
        one_has_ended(life).await;
        let permit = within(life.expiring(life.locker).acquire()).await.unwrap();
        one_has_ended(life).await;
        life.deny();
        judge(life, within(permit.release()).await).await
    }

    pub async fn give_back_by_id(life: &Life<'_>) -> Outcome {
        let theirs = within(life.expiring(life.peer).sized(3).acquire()).await.unwrap();
        let id = theirs.ids().next().unwrap();
        life.deny();
        life.judge(within(life.expiring(life.locker).release_id(id)).await).await
    }

    /// Of a semaphore that somebody deleted.
    pub async fn give_back_to_nobody(life: &Life<'_>) -> Outcome {
        let theirs = within(life.expiring(life.peer).sized(3).acquire()).await.unwrap();
        let id: PermitId = theirs.ids().next().unwrap();
        life.node().cmd(&["DEL", &life.name]).ok();
        life.deny();
        life.judge(within(life.expiring(life.locker).release_id(id)).await).await
    }

    pub async fn extend(life: &Life<'_>) -> Outcome {
        let permit = within(life.expiring(life.locker).sized(3).acquire_many(2)).await.unwrap();
        life.deny();
        life.judge(within(permit.extend(LEASE * 10)).await).await
    }

    pub async fn extend_beside_what_has_ended(life: &Life<'_>) -> Outcome {
        let permit = within(life.expiring(life.locker).sized(3).acquire_many(2)).await.unwrap();
        one_has_ended(life).await;
        life.deny();
        judge(life, within(permit.extend(LEASE * 10)).await).await
    }

    pub async fn set(life: &Life<'_>) -> Outcome {
        let _theirs = within(life.expiring(life.peer).sized(3).acquire()).await.unwrap();
        life.deny();
        life.judge(within(life.expiring(life.locker).set(5)).await).await
    }

    pub async fn look(life: &Life<'_>) -> Outcome {
        one_has_ended(life).await;
        life.deny();
        life.judge(within(life.expiring(life.locker).permits()).await).await
    }

    /// By itself, on a connection of its own, and told when it is taken away. With all rights only.
    pub async fn be_renewed(life: &Life<'_>) -> Outcome {
        if life.missing.is_some() {
            return Done;
        }
        let builder = Client::builder(&life.bench.url).unwrap().watchdog(Duration::from_secs(3));
        let client = within(builder.connect()).await.unwrap();
        let permit = client.permit_semaphore(&life.name).sized(1).acquire();
        let permit = within(permit).await.unwrap();
        let before = permit.valid_until();
        eventually("it is renewed", async || permit.valid_until() > before).await;
        let id = permit.ids().next().unwrap();
        assert!(within(life.expiring(life.peer).release_id(id)).await.unwrap());
        assert_eq!(within(permit.lost()).await, LostReason::Removed);
        within(client.close()).await;
        Done
    }

    pub const STEPS: &[Step] = steps! {
        set_up set_up_again take take_the_first find_the_first_too_few is_refused wait wait_in_vain
        give_back add take_away add_twice take_what_has_ended take_from_one_that_ends
        give_back_beside_what_has_ended give_back_by_id give_back_to_nobody extend
        extend_beside_what_has_ended set look be_renewed
    };
}

pub mod latch {
    use super::*;

    async fn set_to(life: &Life<'_>, count: u32) {
        assert!(within(life.latch(life.peer).try_set(count)).await.unwrap());
    }

    pub async fn set_up(life: &Life<'_>) -> Outcome {
        life.deny();
        life.judge(within(life.latch(life.locker).try_set(2)).await).await
    }

    pub async fn count_down(life: &Life<'_>) -> Outcome {
        set_to(life, 2).await;
        life.deny();
        life.judge(within(life.latch(life.locker).count_down()).await).await
    }

    /// Which settles the record of the call before it.
    pub async fn count_down_again(life: &Life<'_>) -> Outcome {
        set_to(life, 3).await;
        within(life.latch(life.locker).count_down()).await.unwrap();
        life.deny();
        life.judge(within(life.latch(life.locker).count_down()).await).await
    }

    pub async fn open(life: &Life<'_>) -> Outcome {
        set_to(life, 1).await;
        life.deny();
        life.judge(within(life.latch(life.locker).count_down()).await).await
    }

    /// Which is open, and stands in the way of who sets it.
    pub async fn count_down_from_zero(life: &Life<'_>) -> Outcome {
        set_to(life, 0).await;
        life.deny();
        life.judge(within(life.latch(life.locker).count_down()).await).await
    }

    pub async fn pass_an_open_one(life: &Life<'_>) -> Outcome {
        life.deny();
        life.judge(within(life.latch(life.locker).wait()).await).await
    }

    /// And is woken.
    pub async fn wait(life: &Life<'_>) -> Outcome {
        set_to(life, 1).await;
        life.deny();
        let waiter = tokio::spawn(life.latch(life.locker).wait_for(SOON));
        life.asleep(&waiter).await;
        if waiter.is_finished() {
            return life.judge(waiter.await.unwrap()).await;
        }
        within(life.latch(life.peer).count_down()).await.unwrap();
        *life.before.borrow_mut() = life.state();
        let result = within(waiter).await.unwrap();
        assert!(!matches!(result, Ok(false)), "it was not woken");
        life.judge(result).await
    }

    pub async fn look(life: &Life<'_>) -> Outcome {
        set_to(life, 2).await;
        life.deny();
        life.judge(within(life.latch(life.locker).count()).await).await
    }

    pub async fn delete(life: &Life<'_>) -> Outcome {
        set_to(life, 2).await;
        life.deny();
        life.judge(within(life.latch(life.locker).delete()).await).await
    }

    pub const STEPS: &[Step] = steps! {
        set_up count_down count_down_again open count_down_from_zero pass_an_open_one wait look delete
    };
}

/// R-21, I6, I15.
#[tokio::test]
async fn a_semaphore_lives_by_these_rights_and_does_nothing_by_half_without_one() {
    with_just_these_rights("semaphore", counting::STEPS, &[]).await;
}

/// R-21, I6, I15.
#[tokio::test]
async fn a_permit_semaphore_lives_by_these_rights_and_does_nothing_by_half_without_one() {
    let undoing = ["decrby", "del", "hdel"];
    with_just_these_rights("permit semaphore", expiring::STEPS, &undoing).await;
}

/// R-21, I16.
#[tokio::test]
async fn a_latch_lives_by_these_rights_and_does_nothing_by_half_without_one() {
    with_just_these_rights("count-down latch", latch::STEPS, &[]).await;
}
