//! What all synchronizers promise alike, said once and held by each.
//!
//! A promise is a function over [`Synchronizer`](subjects::Synchronizer), in a file by its subject;
//! a synchronizer is a row of the list below. Each pair is a test of its own. What only one of them
//! promises has a module of its own beside this one.
use std::{fs, path::Path};

mod cancelled;
mod exclusion;
mod leftovers;
mod loss;
mod owners;
mod refused;
mod replies;
mod setup;
mod subjects;
mod waiting;

/// The promises of each group, as tests of one synchronizer.
macro_rules! promises {
    ($subject:ident of all) => {
        promises! { $subject:
            cancelled::a_dropped_future_leaves_nothing_behind
            cancelled::a_dropped_wait_leaves_nothing_behind
            cancelled::a_call_dropped_before_its_answer_is_undone
            waiting::a_waiter_is_woken
            waiting::a_waiter_that_hears_nothing_goes_on_by_its_timer
            waiting::a_waiter_survives_broken_connections
            waiting::all_who_wait_are_served
            waiting::a_try_that_does_not_wait_asks_once
            waiting::a_wait_that_ends_is_refused_and_leaves_nothing
            waiting::a_wait_may_be_as_long_as_it_likes
            replies::an_acquire_whose_reply_is_lost_counts_once
            replies::a_try_without_a_reply_is_undone
            replies::a_try_of_a_silent_server_ends
            refused::a_key_of_another_type_is_refused_and_left_alone
            refused::a_waiter_is_told_of_a_key_of_another_type
            refused::strange_names_are_names_like_any_other
            refused::names_that_are_none_are_refused_and_nothing_is_sent
            refused::a_closed_client_refuses
            leftovers::every_key_has_a_ttl
            leftovers::what_is_over_is_forgotten
            leftovers::of_a_dropped_client_nothing_is_left
        }
    };
    ($subject:ident of held) => {
        promises! { $subject:
            exclusion::holds_never_exceed_the_capacity
            exclusion::as_many_as_may_have_it_at_once
            cancelled::a_dropped_give_back_is_done_all_the_same
            waiting::a_try_right_behind_a_give_back_gets_it
            replies::a_give_back_whose_reply_is_lost_counts_once
            leftovers::what_a_killed_process_had_comes_free
        }
    };
    ($subject:ident of leased) => {
        promises! { $subject:
            loss::the_end_of_a_fixed_lease_is_told
            loss::a_removal_by_others_is_told
            loss::a_give_back_of_what_was_removed_says_so
            loss::what_is_held_for_too_long_is_lost
            loss::closing_the_client_is_told_and_gives_nothing_back
            loss::what_is_held_is_renewed_until_it_is_given_back
            loss::what_is_extended_lasts_longer
            refused::durations_that_cannot_be_are_refused_and_nothing_is_sent
        }
    };
    ($subject:ident of owned) => {
        promises! { $subject:
            owners::scopes_side_by_side_exclude_each_other
            owners::another_task_is_another_owner
        }
    };
    ($subject:ident of reentrant) => {
        promises! { $subject:
            owners::an_owner_enters_again_and_leaves_as_often
            owners::a_scope_enters_what_is_held_around_it
        }
    };
    ($subject:ident of entered_once) => {
        promises! { $subject: owners::an_owner_that_would_wait_for_itself_is_told }
    };
    ($subject:ident of ownerless) => {
        promises! { $subject: owners::whoever_takes_again_takes_more }
    };
    // It keeps a number in Redis that may be none.
    ($subject:ident of counted) => {
        promises! { $subject: refused::a_number_that_is_none_is_refused_and_left_alone }
    };
    ($subject:ident: $($file:ident::$promise:ident)*) => {$(
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $promise() {
            super::$file::$promise::<super::subjects::$subject>().await;
        }
    )*};
}

/// A module of tests for each row, and the rows as a list.
macro_rules! contract {
    ($($row:ident, made by $made_by:ident, as $subject:ident: $($group:ident)+;)*) => {
        $(mod $row {
            $(promises! { $subject of $group })+
        })*

        /// Every row: its name, what makes it, and its groups of promises.
        const LIST: &[(&str, &str, &[&str])] =
            &[$((stringify!($row), stringify!($made_by), &[$(stringify!($group)),+])),*];

        /// Does nothing but in the process that a test starts to kill it.
        #[tokio::test]
        async fn the_process_that_is_killed() {
            $(leftovers::be_killed_with::<subjects::$subject>().await;)*
        }
    };
}

contract! {
    lock, made by lock, as Plain: all held leased owned reentrant counted;
    fair_lock, made by fair_lock, as Fair: all held leased owned reentrant counted;
    read_lock, made by read_write_lock, as Read: all held leased owned reentrant counted;
    write_lock, made by read_write_lock, as Write: all held leased owned reentrant counted;
    fenced_lock, made by fenced_lock, as Fenced: all held leased owned reentrant counted;
    spin_lock, made by spin_lock, as Spin: all held leased owned reentrant counted;
    token_lock, made by token_lock, as Token: all held leased owned entered_once;
    multi_lock, made by MultiLock, as Both: all held leased owned reentrant counted;
    striped_lock, made by striped_lock, as Striped: all held leased owned reentrant;
    semaphore, made by semaphore, as Counting: all held ownerless counted;
    permit_semaphore, made by permit_semaphore, as Expiring: all held leased ownerless counted;
    count_down_latch, made by count_down_latch, as Latch: all ownerless counted;
}

/// What is not in the list, and where it is tested instead.
const ELSEWHERE: &[(&str, &str)] = &[("RedLock", "it is of several servers: see red_lock.rs")];

/// A file of `src/sync` that is part of the crate, or `src/client.rs`.
struct Source {
    path: String,
    text: String,
}

fn sources() -> Vec<Source> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let read = |path: &str| fs::read_to_string(root.join(path)).expect("it is there");
    let modules = read("src/sync/mod.rs");
    let modules = modules.lines().filter_map(|line| {
        let name = line.trim_start_matches("pub ").strip_prefix("mod ")?;
        Some(format!("src/sync/{}.rs", name.trim_end_matches(';')))
    });
    let paths = modules.chain(["src/client.rs".to_owned()]);
    paths.map(|path| Source { text: read(&path), path }).collect()
}

impl Source {
    /// What is made from a client by a name, or names.
    fn makers(&self) -> Vec<String> {
        let mut makers = Vec::new();
        for part in self.text.split("\nimpl Client {").skip(1) {
            let part = part.split("\n}").next().expect("there is a first part");
            for function in part.split("    pub fn ").skip(1) {
                let (name, rest) = function.split_once('(').expect("it takes something");
                let takes = rest.split('{').next().expect("there is a first part");
                let of_a_name = takes.starts_with("&self,") && takes.contains("name");
                if of_a_name && !takes.contains("-> Self") {
                    makers.push(name.split('<').next().expect("it has a name").to_owned());
                }
            }
        }
        // What is made of several handles.
        for part in self.text.split("\nimpl ").skip(1) {
            let part = part.split("\n}").next().expect("there is a first part");
            if let Some((name, _)) =
                part.split_once(" {").filter(|_| part.contains("    pub fn new("))
            {
                makers.push(name.to_owned());
            }
        }
        makers.retain(|maker| !ELSEWHERE.iter().any(|(other, _)| other == maker));
        makers
    }

    /// What a kind says, or what it takes from the lock's by saying nothing.
    fn says(&self, text: &str) -> bool {
        let says = |source: &str, text: &str| source.contains(&format!("\n    {text}"));
        let field = text.split(' ').next().expect("a field");
        if self.text.contains("..REENTRANT") && !says(&self.text, field) {
            return says(include_str!("../../../src/sync/lock.rs"), text);
        }
        says(&self.text, text)
    }
}

fn groups_of(maker: &str) -> Vec<&'static str> {
    let rows = LIST.iter().filter(|(_, made_by, _)| *made_by == maker);
    rows.flat_map(|(_, _, groups)| *groups).copied().collect()
}

/// Whoever adds a synchronizer adds a row, with all the groups that its kind calls for.
#[test]
fn every_synchronizer_is_in_the_list() {
    let mut found = Vec::new();
    for source in sources() {
        for maker in source.makers() {
            let groups = groups_of(&maker);
            let needs = |group, needed| {
                let has = groups.contains(&group);
                assert_eq!(has, needed, "{maker} of {} and the group {group}", source.path);
            };
            needs("all", true);
            // What a kind says of itself; that of the lock is not beside its maker.
            if source.says("owned: ") {
                needs("held", source.says("held: true"));
                needs("leased", source.says("renew: Some"));
                needs("owned", source.says("owned: true"));
                needs("ownerless", source.says("owned: false"));
                needs("reentrant", source.says("reenters: true"));
                let once = source.says("owned: true") && source.says("reenters: false");
                needs("entered_once", once);
            }
            found.push(maker);
        }
    }
    for (row, made_by, _) in LIST {
        assert!(found.iter().any(|maker| maker == made_by), "{row}: nothing is called {made_by}");
    }
    assert!(found.len() >= 11, "only {found:?} were found");
}

/// A promise that is in no group is held by nobody; the compiler warns of it, and this fails.
#[test]
fn every_promise_is_in_a_group() {
    let here = include_str!("mod.rs");
    for (file, text) in [
        ("cancelled", include_str!("cancelled.rs")),
        ("exclusion", include_str!("exclusion.rs")),
        ("leftovers", include_str!("leftovers.rs")),
        ("loss", include_str!("loss.rs")),
        ("owners", include_str!("owners.rs")),
        ("refused", include_str!("refused.rs")),
        ("replies", include_str!("replies.rs")),
        ("waiting", include_str!("waiting.rs")),
    ] {
        for promise in text.split("\npub async fn ").skip(1) {
            let name = promise.split('<').next().expect("it has a name");
            assert!(here.contains(&format!("{file}::{name}")), "{file}::{name}");
        }
    }
}
