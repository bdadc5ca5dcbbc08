//! The rules of the house, read off the source text; roughly, as those who keep them read it.

use std::fs;
use std::path::{Path, PathBuf};

/// A file of the repository.
struct Source {
    /// From the root of the repository, with slashes.
    path: String,
    text: String,
}

impl Source {
    /// What is not for tests, with the numbers of the lines.
    fn lines(&self) -> impl Iterator<Item = (usize, &str)> {
        let end = self.text.find("#[cfg(test)]").unwrap_or(self.text.len());
        self.text[..end].lines().enumerate().map(|(at, line)| (at + 1, line))
    }

    /// The same without comments.
    fn code(&self) -> impl Iterator<Item = (usize, &str)> {
        // A `//` in a string is cut as well, from "scheme://" on: nothing here looks for that.
        self.lines().map(|(at, line)| (at, line.split("//").next().unwrap_or_default()))
    }

    fn is_in(&self, places: &[&str]) -> bool {
        places.iter().any(|place| self.path.starts_with(place))
    }
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn files(dir: &str, ending: &str) -> Vec<Source> {
    fn collect(dir: PathBuf, ending: &str, found: &mut Vec<Source>) {
        let Ok(entries) = fs::read_dir(dir) else { return };
        for path in entries.map(|entry| entry.unwrap().path()) {
            let name = path.strip_prefix(root()).unwrap().to_string_lossy().replace('\\', "/");
            if path.is_dir() {
                collect(path, ending, found);
            } else if name.ends_with(ending) {
                found.push(Source { text: fs::read_to_string(&path).unwrap(), path: name });
            }
        }
    }
    let mut found = Vec::new();
    collect(root().join(dir), ending, &mut found);
    found
}

fn src() -> Vec<Source> {
    let files = files("src", ".rs");
    assert!(files.len() > 15, "the rules are for files that were not found");
    files
}

#[track_caller]
fn assert_none(rule: &str, offences: Vec<String>) {
    assert!(offences.is_empty(), "{rule}:\n  {}", offences.join("\n  "));
}

/// Whether a line has a word, and not only as a part of another.
fn has_word(line: &str, word: &str) -> bool {
    line.split(|c: char| !c.is_alphanumeric() && c != '_').any(|part| part == word)
}

/// Places with code that has this text.
fn code_with(text: &str, of_file: impl Fn(&Source) -> bool) -> Vec<String> {
    let mut places = Vec::new();
    for source in src().iter().filter(|source| of_file(source)) {
        let lines = source.code().filter(|(_, line)| line.contains(text));
        places.extend(lines.map(|(at, line)| format!("{}:{at}: {}", source.path, line.trim())));
    }
    places
}

/// Asserts that code has this text in these places, and only there.
#[track_caller]
fn assert_only_in(places: &[&str], text: &str) {
    assert!(!code_with(text, |file| file.is_in(places)).is_empty(), "{text} means nothing now");
    let rule = format!("{text} belongs in {places:?} only");
    assert_none(&rule, code_with(text, |file| !file.is_in(places)));
}

/// The lines of a file that belong to no item under `#[cfg(feature = "fred")]`.
fn without_fred_items(source: &Source) -> Vec<(usize, &str)> {
    let mut kept = Vec::new();
    let mut lines = source.code();
    while let Some((at, line)) = lines.next() {
        if !line.trim().starts_with("#[cfg(feature = \"fred\")]") {
            kept.push((at, line));
            continue;
        }
        let indent = |line: &str| line.len() - line.trim_start().len();
        let closes = |line: &str| line.ends_with(';') || line.trim_start().starts_with('}');
        lines.find(|(_, next)| indent(next) == indent(line) && closes(next.trim_end()));
    }
    kept
}

#[test]
fn only_the_server_room_names_fred() {
    let mut offences = Vec::new();
    for source in src().iter().filter(|source| !source.is_in(&["src/server/"])) {
        let gated = source.is_in(&["src/client.rs", "src/lib.rs"]);
        let lines = if gated { without_fred_items(source) } else { source.code().collect() };
        let named = lines.into_iter().filter(|(_, line)| has_word(line, "fred"));
        offences.extend(named.map(|(at, line)| format!("{}:{at}: {line}", source.path)));
    }
    assert_none("only src/server/ names fred", offences);
}

#[test]
fn calls_run_from_sync_to_engine_to_server() {
    let in_server = |text| code_with(text, |file| file.is_in(&["src/server/"]));
    assert_none("the server room calls nobody", in_server("crate::engine"));
    assert_none("the server room calls nobody", in_server("crate::sync"));
    let in_engine = code_with("crate::sync", |file| file.is_in(&["src/engine/"]));
    assert_none("the engine does not know its users", in_engine);
}

const ACQUIRE: &str = "src/engine/acquire.rs";
const RENEWAL: &str = "src/engine/renewal.rs";

/// Redisson has one in each of its locks; here all wait in one place.
#[test]
fn one_file_waits_for_locks() {
    // What else sleeps: the watch over deadlines, the wheel, the subscriptions.
    let (hold, wakeups) = ("src/engine/hold.rs", "src/engine/wakeups.rs");
    assert_only_in(&[ACQUIRE, RENEWAL, hold, wakeups, "src/server/"], "time::sleep");
    // The wheel has a `wake` of its own.
    assert_only_in(&[ACQUIRE, RENEWAL], ".wake.notified()");
    assert_only_in(&[ACQUIRE], "wakeups.listen(");
    // Whoever asks several servers counts their time, and rests where votes were split; what it
    // waits for is still waited for in one place.
    assert_only_in(&[ACQUIRE, "src/engine/quorum.rs"], ".timer(");
    let loops = code_with("loop {", |file| !file.is_in(&["src/engine/", "src/server/"]));
    assert_none("what users see has no loop", loops);
}

#[test]
fn one_file_sends_lists_of_renewals() {
    assert_only_in(&[RENEWAL, "src/server/"], ".list(");
    // Kinds name the script; who sends it is said by the next line.
    assert_only_in(&["src/sync/", "src/server/script.rs"], "LOCK_RENEW");
    // `extend` sends a single one.
    assert_only_in(&[RENEWAL, "src/sync/held.rs"], "recipe.renew(");
}

#[test]
fn key_names_are_built_in_one_file() {
    assert_only_in(&["src/keys.rs"], "redisson_");
    let own = code_with("leasehold_", |file| !file.is_in(&["src/keys.rs"]));
    assert_none("prefixes live in keys.rs", own);
    let scripts = files("lua", ".lua");
    assert!(scripts.len() >= 5);
    let mut offences = Vec::new();
    for script in &scripts {
        let code = script.text.lines().map(|line| line.split("--").next().unwrap_or_default());
        let built = code.filter(|line| {
            line.contains("..") && (line.contains("KEYS") || line.contains("call("))
                || line.contains("redisson_")
        });
        offences.extend(built.map(|line| format!("{}: {line}", script.path)));
    }
    assert_none("a script gets its keys whole", offences);
}

#[test]
fn every_file_says_what_it_is() {
    let headless = |source: &Source| !source.text.starts_with("//! ");
    let all = src().into_iter().chain(files("tests/it", ".rs"));
    let bare = all.filter(headless).map(|source| source.path).collect();
    assert_none("a file begins with a header", bare);
}

#[test]
fn no_file_is_too_long_to_read() {
    let long = src().into_iter().filter(|source| source.text.lines().count() > 700);
    assert_none("700 lines at most", long.map(|source| source.path).collect());
}

#[test]
fn nothing_is_unsafe_and_nothing_unwraps() {
    assert_none("an expectation says why", code_with(".unwrap()", |_| true));
    assert_none("nothing is left to do", code_with("todo!", |_| true));
    let dirs = ["src", "tests", "benches", "examples"];
    let all = dirs.into_iter().flat_map(|dir| files(dir, ".rs"));
    let word = ["un", "safe"].concat();
    let unsound = all.filter(|file| file.code().any(|(_, line)| has_word(line, &word)));
    assert_none("nothing is unsound", unsound.map(|source| source.path).collect());
}

/// Each public function: where it is, its signature, and what stands above it.
fn public_functions() -> Vec<(String, String, String)> {
    let mut functions = Vec::new();
    for source in src() {
        let lines: Vec<_> = source.lines().map(|(_, line)| line.trim_start()).collect();
        let mut above = String::new();
        for (at, line) in lines.iter().enumerate() {
            if line.starts_with("pub fn ") || line.starts_with("pub async fn ") {
                let signature = lines[at..].join(" ").split('{').next().map(str::to_owned);
                let place = format!("{}:{}", source.path, at + 1);
                functions.push((place, signature.unwrap_or_default(), above.clone()));
            }
            let goes_on = line.starts_with("///") || line.starts_with("#[");
            above = if goes_on { above + line + "\n" } else { String::new() };
        }
    }
    assert!(functions.len() > 40, "functions are not found any more");
    functions
}

#[test]
fn docs_tell_of_errors_and_of_cancellation() {
    let mut missing = Vec::new();
    for (place, signature, docs) in public_functions() {
        let returns = signature.split_once("->").map_or("", |(_, returns)| returns);
        let is_future = signature.contains("async fn") || returns.contains("impl Future");
        let fails = returns.contains("Result<");
        for (needed, section) in [(is_future, "# Cancel safety"), (fails, "# Errors")] {
            if needed && !docs.contains(section) {
                missing.push(format!("{place}: no `{section}`"));
            }
        }
    }
    assert_none("docs say what can go wrong", missing);
}

/// Dropped by mistake, these undo or forget what was asked for.
#[test]
fn what_must_be_used_says_so() {
    // What only tells of something.
    let seen = ["Client", "Held", "Holder", "JointHeld", "Permits", "PermitId"];
    let files = src().into_iter().filter(|source| source.is_in(&["src/sync/", "src/client.rs"]));
    let mut found = 0;
    for source in files {
        for (at, item) in source.text.match_indices("\npub struct ") {
            let name = source.text[at + item.len()..].split([' ', '(', '<']).next();
            let name = name.expect("a struct has a name");
            let above = source.text[..at].rsplit("\n\n").next().unwrap_or_default();
            assert!(seen.contains(&name) || above.contains("#[must_use"), "{name}");
            found += 1;
        }
    }
    assert!(found > 15, "handles and guards are not found any more");
}

#[test]
fn every_test_module_is_run() {
    let main = fs::read_to_string(root().join("tests/it/main.rs")).unwrap();
    let paths = files("tests/it", ".rs").into_iter().map(|source| source.path);
    let modules = paths.filter(|path| path != "tests/it/main.rs").map(|path| {
        let inside = path.trim_start_matches("tests/it/").trim_end_matches(".rs");
        inside.split('/').next().unwrap_or(inside).to_owned()
    });
    let forgotten = modules.filter(|name| !main.contains(&format!("mod {name};"))).collect();
    assert_none("each is in main.rs", forgotten);
}
