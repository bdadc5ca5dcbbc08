//! What README's section "Rights" says, read as it stands there.

use std::collections::BTreeSet;

const PAGE: &str = include_str!("../../../README.md");

/// The part of the page that says what users need.
fn section() -> &'static str {
    let (_, rest) = PAGE.split_once("<!-- acl:begin -->").expect("the section begins");
    rest.split_once("<!-- acl:end -->").expect("the section ends").0
}

/// Words that are rules of an ACL user.
fn rules(text: &str) -> Vec<&str> {
    let quoted = text.split('`').skip(1).step_by(2).flat_map(str::split_whitespace);
    quoted
        .filter(|word| word.starts_with(['+', '-', '~', '&']) || *word == "resetchannels")
        .collect()
}

/// The block of the lock, without the user's name and password.
pub fn lock() -> Vec<&'static str> {
    let block = section().split("```").nth(1).expect("the rule of the lock");
    let words = block.split_whitespace().skip_while(|word| *word != "resetchannels");
    words.filter(|word| !matches!(*word, "resetchannels" | "-@all")).collect()
}

/// The rights of the connection: what the lock has from `+publish` on.
fn connection() -> impl Iterator<Item = &'static str> {
    lock().into_iter().skip_while(|rule| *rule != "+publish")
}

/// The row of the table that begins with this name: its commands, and its keys and channels.
fn row(kind: &str) -> [&'static str; 2] {
    let line = section().lines().map(str::trim).find(|line| line.starts_with(&format!("| {kind}")));
    let cells: Vec<_> = line.unwrap_or_else(|| panic!("no row for {kind}")).split('|').collect();
    [cells[2], cells[3]]
}

/// The kinds that have a row.
pub fn rows() -> Vec<&'static str> {
    let lines = section().lines().map(str::trim).filter(|line| line.starts_with("| "));
    let first = lines.map(|line| line.split('|').nth(1).expect("a cell").trim());
    first.filter(|kind| !kind.is_empty()).collect()
}

/// All rules of one kind, as they are given to a user that has none.
pub fn of(kind: &str) -> Vec<&'static str> {
    if kind == "lock" {
        return lock();
    }
    let both_modes = matches!(kind, "read lock" | "write lock");
    let [commands, patterns] = row(if both_modes { "read/write lock" } else { kind });
    let mut all: Vec<&str> = if commands.contains("those of the lock") {
        lock()
    } else {
        ["~app:*", "+evalsha", "+eval"].into_iter().chain(connection()).collect()
    };
    for rule in rules(commands).into_iter().chain(rules(patterns)) {
        match rule.strip_prefix('-') {
            Some(command) => all.retain(|rule| rule.strip_prefix('+') != Some(command)),
            None if rule == "resetchannels" => all.retain(|rule| !rule.starts_with('&')),
            None => all.push(rule),
        }
    }
    all
}

/// What a cluster needs besides, and what it then can do without.
pub fn in_a_cluster() -> Vec<String> {
    let (_, rest) = section().split_once("a\n  cluster").expect("it speaks of clusters");
    let rest = rest.split("\n* ").next().expect("a bullet");
    let more = rules(rest).into_iter().map(str::to_owned);
    let less = ["publish", "subscribe", "unsubscribe"].map(|command| format!("-{command}"));
    more.chain(less).collect()
}

/// The commands that the scripts of these folders send.
fn sent_by(folders: &[&str]) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for folder in folders {
        let dir = format!("{}/lua/{folder}", env!("CARGO_MANIFEST_DIR"));
        for file in std::fs::read_dir(dir).expect("its scripts").flatten() {
            let text = std::fs::read_to_string(file.path()).expect("a script");
            // `failed` and `in_chunks` take the command that is to be sent.
            for call in ["redis.pcall(", "failed(", "in_chunks("] {
                for at in text.split(call).skip(1) {
                    let words = at.lines().next().expect("a line").split(')').next();
                    let word = words.and_then(|words| words.split('\'').nth(1)).unwrap_or_default();
                    if word.starts_with(|c: char| c.is_ascii_uppercase()) {
                        found.insert(format!("+{}", word.to_lowercase()));
                    }
                }
            }
        }
    }
    found
}

/// No more than its scripts send, and no less: also what only rare states call for.
#[test]
fn the_readme_lists_for_each_kind_just_the_commands_of_its_scripts() {
    let kinds: [(&str, &[&str]); 9] = [
        ("lock", &["lock"]),
        ("fair lock", &["fair_lock", "lock"]),
        ("read/write lock", &["read_write_lock"]),
        ("fenced lock", &["fenced_lock", "lock"]),
        ("spin lock", &["lock"]),
        ("token lock", &["token_lock"]),
        ("semaphore", &["semaphore"]),
        ("permit semaphore", &["permit_semaphore"]),
        ("count-down latch", &["count_down_latch"]),
    ];
    let folders = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/lua")).unwrap();
    let folders = folders.flatten().filter(|folder| folder.path().is_dir()).count();
    assert_eq!(kinds.len() - 1, folders, "the spin lock has none of its own");
    assert_eq!(kinds.len() - 1, rows().len(), "the lock has a block of its own: {:?}", rows());
    for (kind, folders) in kinds {
        let besides: BTreeSet<_> = ["+evalsha", "+eval"].into_iter().chain(connection()).collect();
        let listed = of(kind).into_iter().filter(|rule| rule.starts_with('+'));
        let listed = listed.filter(|rule| !besides.contains(rule)).map(str::to_owned);
        assert_eq!(listed.collect::<BTreeSet<_>>(), sent_by(folders), "{kind}");
    }
}
