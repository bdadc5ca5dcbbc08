//! The Lua files, embedded; one constant each, so that a misspelt name does not compile.

use std::sync::OnceLock;

/// One Lua file.
#[derive(Debug)]
pub(crate) struct Script {
    /// Folder and file, `lock/acquire`.
    pub name: &'static str,
    pub source: &'static str,
    /// Keys of one entry of a list; of the whole script if it takes no list.
    pub keys: usize,
    /// Arguments of one entry.
    pub args: usize,
    /// Which codes are followed by a text in the reply.
    pub has_text: fn(i64) -> bool,
    /// Its place in the catalogue, which tells the lanes of a batch apart.
    pub index: u8,
    sha: OnceLock<String>,
}

impl Script {
    const fn new(
        index: u8,
        name: &'static str,
        source: &'static str,
        keys: usize,
        args: usize,
        has_text: fn(i64) -> bool,
    ) -> Self {
        Self { name, source, keys, args, has_text, index, sha: OnceLock::new() }
    }

    /// What `EVALSHA` calls it.
    pub(crate) fn sha(&self) -> &str {
        self.sha.get_or_init(|| fred::util::sha1_hash(self.source))
    }
}

macro_rules! scripts {
    ($($index:literal $constant:ident = $name:literal ($keys:literal keys, $args:literal args, $has_text:expr);)*) => {
        $(pub(crate) static $constant: Script = Script::new(
            $index,
            $name,
            include_str!(concat!("../../lua/", $name, ".lua")),
            $keys,
            $args,
            $has_text,
        );)*

        #[cfg(test)]
        static CATALOGUE: &[&Script] = &[$(&$constant),*];
    };
}

scripts! {
    0 LOCK_ACQUIRE = "lock/acquire" (1 keys, 3 args, |code| code <= -2 || code > 0);
    1 LOCK_RELEASE = "lock/release" (2 keys, 3 args, |code| code == -2 || code == -4);
    2 LOCK_RENEW = "lock/renew" (1 keys, 2 args, |code| code == -2);
    3 LOCK_FORCE_RELEASE = "lock/force_release" (2 keys, 2 args, |code| code == -2 || code == -4);
    4 LOCK_INSPECT = "lock/inspect" (1 keys, 0 args, |code| code != -1);
    5 FENCED_LOCK_ACQUIRE = "fenced_lock/acquire" (2 keys, 4 args, |code| code != -1);
    6 FENCED_LOCK_INSPECT = "fenced_lock/inspect" (2 keys, 0 args, |_| true);
    7 TOKEN_LOCK_ACQUIRE = "token_lock/acquire" (1 keys, 2 args, |code| code <= -2 || code > 0);
    8 TOKEN_LOCK_RELEASE = "token_lock/release" (2 keys, 2 args, |code| code == -2 || code == -4);
    9 TOKEN_LOCK_RENEW = "token_lock/renew" (1 keys, 2 args, |code| code == -2);
    10 TOKEN_LOCK_FORCE_RELEASE = "token_lock/force_release" (2 keys, 2 args, |code| code == -2 || code == -4);
    11 TOKEN_LOCK_INSPECT = "token_lock/inspect" (1 keys, 0 args, |code| code != -1);
    12 SEMAPHORE_ACQUIRE = "semaphore/acquire" (3 keys, 5 args, |code| code <= -2);
    13 SEMAPHORE_RELEASE = "semaphore/release" (3 keys, 5 args, |code| code == -2 || code == -4);
    14 SEMAPHORE_GIVE = "semaphore/give" (3 keys, 5 args, |code| code == -2 || code == -4);
    15 SEMAPHORE_ADD = "semaphore/add" (3 keys, 4 args, |_| true);
    16 SEMAPHORE_TRY_SET = "semaphore/try_set" (3 keys, 5 args, |code| code == -2 || code == -4);
    17 SEMAPHORE_DRAIN = "semaphore/drain" (2 keys, 2 args, |code| code != -1);
    18 SEMAPHORE_INSPECT = "semaphore/inspect" (1 keys, 0 args, |code| code != -1);
    19 PERMIT_SEMAPHORE_ACQUIRE = "permit_semaphore/acquire" (3 keys, 4 args, |code| code <= -2 || code > 0);
    20 PERMIT_SEMAPHORE_RELEASE = "permit_semaphore/release" (3 keys, 2 args, |code| code == -2 || code == -4);
    21 PERMIT_SEMAPHORE_RENEW = "permit_semaphore/renew" (3 keys, 3 args, |code| code == -2);
    22 PERMIT_SEMAPHORE_TRY_SET = "permit_semaphore/try_set" (4 keys, 4 args, |code| code == -2 || code == -4);
    23 PERMIT_SEMAPHORE_SET = "permit_semaphore/set" (3 keys, 2 args, |code| code == -2 || code == -4);
    24 PERMIT_SEMAPHORE_ADD = "permit_semaphore/add" (3 keys, 4 args, |_| true);
    25 PERMIT_SEMAPHORE_INSPECT = "permit_semaphore/inspect" (2 keys, 0 args, |code| code != -1);
    26 COUNT_DOWN_LATCH_WAIT = "count_down_latch/wait" (1 keys, 0 args, |code| code <= -2);
    27 COUNT_DOWN_LATCH_COUNT_DOWN = "count_down_latch/count_down" (3 keys, 3 args, |code| code == -2 || code == -4);
    28 COUNT_DOWN_LATCH_TRY_SET = "count_down_latch/try_set" (2 keys, 2 args, |code| code == -2 || code == -4);
    29 COUNT_DOWN_LATCH_DELETE = "count_down_latch/delete" (2 keys, 1 args, |code| code == -2 || code == -4);
    30 COUNT_DOWN_LATCH_INSPECT = "count_down_latch/inspect" (1 keys, 0 args, |code| code == -2);
    31 FAIR_LOCK_ACQUIRE = "fair_lock/acquire" (4 keys, 4 args, |code| code <= -2 || code > 0);
    32 FAIR_LOCK_RELEASE = "fair_lock/release" (5 keys, 3 args, |code| code == -2 || code == -4);
    33 FAIR_LOCK_RENEW = "fair_lock/renew" (5 keys, 4 args, |code| code == -2);
    34 FAIR_LOCK_FORCE_RELEASE = "fair_lock/force_release" (5 keys, 2 args, |code| code == -2 || code == -4);
    35 READ_WRITE_LOCK_READ_ACQUIRE = "read_write_lock/read_acquire" (2 keys, 4 args, |code| code <= -2 || code > 0);
    36 READ_WRITE_LOCK_WRITE_ACQUIRE = "read_write_lock/write_acquire" (1 keys, 3 args, |code| code <= -2 || code > 0);
    37 READ_WRITE_LOCK_READ_RELEASE = "read_write_lock/read_release" (4 keys, 3 args, |code| code == -2 || code == -4);
    38 READ_WRITE_LOCK_WRITE_RELEASE = "read_write_lock/write_release" (3 keys, 3 args, |code| code == -2 || code == -4);
    39 READ_WRITE_LOCK_RENEW = "read_write_lock/renew" (2 keys, 3 args, |code| code == -2);
    40 READ_WRITE_LOCK_FORCE_RELEASE = "read_write_lock/force_release" (3 keys, 3 args, |code| code == -2 || code == -4);
    41 READ_WRITE_LOCK_INSPECT = "read_write_lock/inspect" (1 keys, 1 args, |code| code != -1);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::path::Path;

    /// The lines of the comment at the top.
    fn header(script: &Script) -> Vec<&'static str> {
        let lines = script.source.lines().skip_while(|line| line.starts_with("#!"));
        lines.take_while(|line| line.starts_with("--")).collect()
    }

    fn body(script: &Script) -> String {
        let code = script.source.lines().filter(|line| !line.trim_start().starts_with("--"));
        code.filter(|line| !line.starts_with("#!")).collect::<Vec<_>>().join("\n")
    }

    /// The index expressions that follow `word` in brackets: `KEYS[2i-1]` gives `2i-1`.
    fn indexes(text: &str, word: &str) -> BTreeSet<String> {
        let mut found = BTreeSet::new();
        for (at, _) in text.match_indices(&format!("{word}[")) {
            let rest = &text[at + word.len() + 1..];
            let inside = rest.split(']').next().expect("a bracket that closes");
            found.insert(inside.replace([' ', '*'], ""));
        }
        found
    }

    #[test]
    fn every_file_is_catalogued_under_its_own_place() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("lua");
        let mut on_disk = BTreeSet::new();
        for folder in std::fs::read_dir(&root).unwrap().flatten() {
            if !folder.path().is_dir() {
                continue;
            }
            for file in std::fs::read_dir(folder.path()).unwrap().flatten() {
                let path = file.path();
                let inside = path.strip_prefix(&root).unwrap().with_extension("");
                on_disk.insert(inside.to_string_lossy().into_owned());
            }
        }
        let catalogued: BTreeSet<_> = CATALOGUE.iter().map(|s| s.name.to_owned()).collect();
        assert_eq!(on_disk, catalogued);
        for (place, script) in CATALOGUE.iter().enumerate() {
            assert_eq!(usize::from(script.index), place, "{}", script.name);
        }
    }

    #[test]
    fn every_header_says_keys_arguments_returns_and_resend() {
        for script in CATALOGUE {
            let header = header(script);
            let first = header.first().expect("a header");
            assert!(first.starts_with(&format!("-- {} — ", script.name)), "{first}");
            for section in ["-- KEYS[", "-- Returns ", "-- Resend  "] {
                let found = header.iter().any(|line| line.starts_with(section));
                assert!(found, "{} has no {section:?}", script.name);
            }
            let text = header.join("\n");
            assert_eq!(indexes(&text, "KEYS").len(), script.keys, "{} keys", script.name);
            assert_eq!(indexes(&text, "ARGV").len(), script.args, "{} args", script.name);
        }
    }

    #[test]
    fn every_body_uses_just_the_keys_and_arguments_of_its_header() {
        for script in CATALOGUE {
            let (header, body) = (header(script).join("\n"), body(script));
            for word in ["KEYS", "ARGV"] {
                assert_eq!(
                    indexes(&header, word),
                    indexes(&body, word),
                    "{} in {}",
                    word,
                    script.name
                );
            }
        }
    }

    #[test]
    fn every_code_a_body_returns_is_in_its_header() {
        for script in CATALOGUE {
            let header = header(script).join("\n");
            let body = body(script);
            for code in ["-1", "-2", "-3", "-4"] {
                let returned = body.contains(&format!("return {code}"))
                    || body.contains(&format!("return {{ {code}"))
                    || body.contains(&format!("ttl = {code} "));
                let told = header.lines().any(|line| {
                    let line = line.trim_start_matches("-- Returns").trim_start_matches("--");
                    line.split_whitespace().next() == Some(code)
                });
                assert!(!returned || told, "{} returns {code} untold", script.name);
            }
        }
    }

    #[test]
    fn no_script_builds_a_key_name_or_can_raise() {
        for script in CATALOGUE {
            let body = body(script);
            assert!(!body.contains("redis.call("), "{}: a list must not raise", script.name);
            assert!(!body.contains("redisson_"), "{}: keys come in from outside", script.name);
        }
    }
}
