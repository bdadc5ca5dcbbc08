//! Proves that the test support does what it says: a fault that does not happen proves nothing.
//!
//! Include it as a module of one test program that has `mod support` at its root.
use std::{
    env,
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    panic,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
    time::Duration,
};

use crate::support::{
    Capture, assert_every_key_has_ttl, assert_no_keys, blocking,
    cluster::ClusterSetup,
    eventually,
    history::History,
    keys_without_ttl,
    proxy::{Proxy, any, both, mentioning, named},
    redisson::Redisson,
    sentinel::SentinelSetup,
    server::{Raw, RedisServer, Reply, command, find_program, until},
    subscriptions, unique,
};

/// Long enough for a stray byte to show up on loopback; a slow machine makes a test that expects
/// silence lenient, never red.
const SILENCE: Duration = Duration::from_millis(100);
const SOON: Duration = Duration::from_secs(10);

mod servers {
    use super::*;

    fn is_gone(port: u16, pid: u32, dir: &Path) -> bool {
        command(port, &["PING"]).is_err() && !alive(pid) && !dir.exists()
    }

    fn alive(pid: u32) -> bool {
        let probe = format!("kill -0 {pid}");
        let status = Command::new("sh").args(["-c", &probe]).stderr(Stdio::null()).status();
        status.expect("there is a shell").success()
    }

    #[test]
    fn each_server_has_its_own_port_and_directory() {
        let (a, b) = (RedisServer::start(), RedisServer::start());
        assert_ne!((a.port(), a.dir()), (b.port(), b.dir()));
        a.raw().cmd(&["SET", "k", "a"]).ok();
        assert!(b.raw().cmd(&["GET", "k"]).is_nil());
        let info = a.raw().cmd(&["INFO", "server"]).text();
        assert!(info.contains(&format!("process_id:{}\r\n", a.pid())));
        assert_eq!(a.url(), format!("redis://127.0.0.1:{}/", a.port()));
    }

    #[test]
    fn a_dropped_server_is_gone() {
        let server = RedisServer::start();
        let (port, pid, dir) = (server.port(), server.pid(), server.dir().to_owned());
        assert!(alive(pid) && dir.exists());
        drop(server);
        assert!(is_gone(port, pid, &dir));
    }

    #[test]
    fn a_paused_server_can_be_dropped() {
        let server = RedisServer::start();
        server.pause();
        let (pid, dir) = (server.pid(), server.dir().to_owned());
        drop(server);
        assert!(!alive(pid) && !dir.exists());
    }

    #[test]
    fn a_panic_takes_the_server_with_it() {
        let server = RedisServer::start();
        let (port, pid, dir) = (server.port(), server.pid(), server.dir().to_owned());
        let panicked = panic::catch_unwind(move || {
            let _server = server;
            panic::resume_unwind(Box::new("a test failed"));
        });
        assert!(panicked.is_err());
        assert!(is_gone(port, pid, &dir));
    }

    #[test]
    fn a_killed_owner_takes_its_server_with_it() {
        let mut owner = Command::new(env::current_exe().expect("a test program"))
            .args(["an_owner_that_is_killed", "--nocapture"])
            .env("LEASEHOLD_TEST_OWNER", "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the owner starts");
        let mut lines = BufReader::new(owner.stdout.take().expect("a pipe")).lines();
        let words = loop {
            let line = lines.next().expect("the owner tells its server").expect("as text");
            if let Some((_, words)) = line.split_once("SERVER ") {
                break words.split(' ').map(str::to_owned).collect::<Vec<_>>();
            }
        };
        let (port, pid) = (words[0].parse().expect("a port"), words[1].parse().expect("a pid"));
        let dir = PathBuf::from(&words[2]);
        assert_eq!(command(port, &["PING"]).expect("the server runs").text(), "PONG");
        owner.kill().expect("SIGKILL");
        owner.wait().expect("the owner ends");
        until("the server is gone", || is_gone(port, pid, &dir));
    }

    /// The other process of the test above; by itself it does nothing.
    #[test]
    fn an_owner_that_is_killed() {
        if env::var_os("LEASEHOLD_TEST_OWNER").is_some() {
            let server = RedisServer::start();
            println!("SERVER {} {} {}", server.port(), server.pid(), server.dir().display());
            let _ = std::io::stdin().read_line(&mut String::new());
        }
    }

    #[test]
    fn a_restart_keeps_port_and_directory_and_only_what_is_on_disk() {
        for (mut server, kept) in
            [(RedisServer::start(), 0), (RedisServer::builder().appendonly().start(), 1)]
        {
            let (port, pid, dir) = (server.port(), server.pid(), server.dir().to_owned());
            server.raw().cmd(&["SET", "k", "v"]).ok();
            server.kill();
            assert!(command(port, &["PING"]).is_err() && dir.exists());
            server.restart();
            assert_eq!((server.port(), server.dir()), (port, &*dir));
            assert_ne!(server.pid(), pid);
            assert_eq!(server.raw().cmd(&["EXISTS", "k"]).int(), kept);
        }
    }

    #[test]
    fn a_server_that_has_ended_by_itself_can_be_restarted() {
        let mut server = RedisServer::start();
        let _ = server.raw().try_cmd(&["SHUTDOWN", "NOSAVE"]);
        until("the server has ended", || command(server.port(), &["PING"]).is_err());
        server.restart();
        assert_eq!(server.raw().cmd(&["PING"]).text(), "PONG");
    }

    #[test]
    fn a_paused_server_is_silent_until_it_is_resumed() {
        let server = RedisServer::start();
        let raw = server.raw();
        raw.subscribe("c");
        server.pause();
        let publisher = server.raw();
        publisher.send(&[b"PUBLISH", b"c", b"m"]).expect("the socket is open");
        assert_eq!(raw.next_message(SILENCE), None);
        server.resume();
        assert_eq!(raw.next_message(SOON).expect("a message").payload, "m");
        assert_eq!(publisher.receive().expect("an answer").int(), 1);
    }

    #[test]
    fn arguments_reach_the_server() {
        let server = RedisServer::builder().arg("--maxmemory").args(["123456789"]).start();
        let memory = server.raw().cmd(&["CONFIG", "GET", "maxmemory"]).map();
        assert_eq!(memory["maxmemory"], "123456789");
        server.raw().cmd(&["DEBUG", "SLEEP", "0"]).ok();
    }

    #[test]
    fn a_server_with_a_password_starts_too() {
        let server = RedisServer::builder().args(["--requirepass", "secret"]).start();
        let raw = server.raw();
        assert!(raw.cmd(&["GET", "k"]).error().is_some_and(|text| text.starts_with("NOAUTH")));
        raw.cmd(&["AUTH", "secret"]).ok();
        assert!(raw.cmd(&["GET", "k"]).is_nil());
    }

    #[test]
    fn a_server_that_cannot_start_says_why() {
        let error = RedisServer::builder().arg("--no-such-setting").try_start();
        let text = error.expect_err("the setting is unknown").to_string();
        assert!(text.contains("no-such-setting") && text.contains("ended at once"), "{text}");
        assert!(text.contains("FATAL CONFIG FILE ERROR"), "{text}");
    }

    #[test]
    fn a_missing_binary_is_told_with_what_to_install() {
        let text = find_program(None, Some("/nowhere".into())).expect_err("none").to_string();
        assert!(
            text.contains("apt install redis-server") && text.contains("LEASEHOLD_REDIS_SERVER")
        );
        let named = find_program(Some("/opt/valkey".into()), None).expect("it is named");
        assert_eq!(named, Path::new("/opt/valkey"));
    }

    #[test]
    fn a_sentinel_promotes_the_replica() {
        let mut setup = SentinelSetup::start();
        assert_eq!(setup.primary_port(), setup.primary.port());
        let sentinel = setup.sentinel.port();
        let url = format!("redis-sentinel://127.0.0.1:{sentinel}/0?sentinelServiceName=mymaster");
        assert_eq!(setup.url(), url);
        setup.primary.raw().cmd(&["SET", "old", "v"]).ok();
        setup.wait_replicated();
        setup.kill_primary();
        setup.wait_failed_over();
        assert_eq!(setup.primary_port(), setup.replica.port());
        setup.replica.raw().cmd(&["SET", "new", "v"]).ok();
        assert_eq!(setup.replica.raw().cmd(&["GET", "old"]).text(), "v");
    }

    #[test]
    fn a_cluster_serves_every_slot() {
        let cluster = ClusterSetup::start();
        assert_eq!(cluster.ports().len(), 3);
        for key in ["a", "b", "c", "d", "e", "f"] {
            cluster.node_of(key).raw().cmd(&["SET", key, "v"]).ok();
        }
        let counts: Vec<_> = cluster.nodes.iter().map(|n| n.raw().cmd(&["DBSIZE"]).int()).collect();
        assert_eq!(counts.iter().sum::<i64>(), 6);
        assert!(counts.iter().all(|&count| count > 0), "{counts:?}");
    }
}

mod raw_connections {
    use super::*;

    #[test]
    fn every_kind_of_value_is_read_and_no_part_of_one() {
        let bulk = |text: &str| Reply::Bulk(text.into());
        let cases: [(&str, Reply); 18] = [
            ("+OK\r\n", Reply::Status("OK".into())),
            ("-ERR no\r\n", Reply::Error("ERR no".into())),
            (":-7\r\n", Reply::Int(-7)),
            ("$2\r\n\r\n\r\n", bulk("\r\n")),
            ("$0\r\n\r\n", bulk("")),
            ("$-1\r\n", Reply::Nil),
            ("*-1\r\n", Reply::Nil),
            ("_\r\n", Reply::Nil),
            ("#t\r\n", Reply::Int(1)),
            ("#f\r\n", Reply::Int(0)),
            (",1.5\r\n", bulk("1.5")),
            ("(123\r\n", bulk("123")),
            ("=6\r\ntxt:hi\r\n", bulk("hi")),
            ("!6\r\nERR no\r\n", Reply::Error("ERR no".into())),
            (
                "*2\r\n:1\r\n*1\r\n_\r\n",
                Reply::Array(vec![Reply::Int(1), Reply::Array(vec![Reply::Nil])]),
            ),
            ("~1\r\n:1\r\n", Reply::Array(vec![Reply::Int(1)])),
            ("%1\r\n+k\r\n:1\r\n", Reply::Array(vec![Reply::Status("k".into()), Reply::Int(1)])),
            ("|1\r\n+k\r\n:1\r\n>1\r\n:2\r\n", Reply::Push(vec![Reply::Int(2)])),
        ];
        for (text, expected) in cases {
            for end in 0..text.len() {
                assert_eq!(Reply::parse(&text.as_bytes()[..end]), Ok(None), "{:?}", &text[..end]);
            }
            let more = [text.as_bytes(), b"+more"].concat();
            assert_eq!(Reply::parse(&more), Ok(Some((expected, text.len()))), "{text:?}");
        }
        for garbage in ["hello\r\n", "$x\r\n", "*-2\r\n", "$1\r\nabc\r\n"] {
            assert!(Reply::parse(garbage.as_bytes()).is_err(), "{garbage:?}");
        }
    }

    #[test]
    fn messages_and_replies_are_told_apart() {
        let server = RedisServer::start();
        for protocol in ["2", "3"] {
            let raw = server.raw();
            raw.cmd(&["HELLO", protocol]).ok();
            raw.subscribe("c");
            let other = server.raw();
            assert_eq!(other.cmd(&["PUBLISH", "c", "one"]).int(), 1);
            assert_eq!(other.cmd(&["PUBLISH", "c", "two"]).int(), 1);
            raw.cmd(&["UNSUBSCRIBE", "c"]).ok();
            let payloads = [SOON; 2].map(|wait| raw.next_message(wait).expect("it came").payload);
            assert_eq!(payloads, ["one", "two"]);
            assert_eq!(raw.next_message(SILENCE), None);
            assert_eq!(raw.cmd(&["PING"]).text(), "PONG");
        }
    }

    #[test]
    fn replies_have_their_shapes() {
        let server = RedisServer::start();
        let raw = server.raw();
        raw.cmd(&["HSET", "h", "a", "1", "b", "2"]).ok();
        assert_eq!(
            raw.cmd(&["HGETALL", "h"]).map().into_iter().collect::<Vec<_>>(),
            [("a".to_owned(), "1".to_owned()), ("b".to_owned(), "2".to_owned())]
        );
        assert_eq!(raw.cmd(&["HGET", "h", "b"]).int(), 2);
        assert!(raw.cmd(&["HGET", "h", "c"]).is_nil());
        assert!(raw.cmd(&["GET", "h"]).error().is_some_and(|text| text.starts_with("WRONGTYPE")));
        raw.cmd_bytes(&[b"SET", b"k", &[0, 255, 13, 10]]).ok();
        assert_eq!(raw.cmd(&["GET", "k"]), Reply::Bulk(vec![0, 255, 13, 10]));
    }
}

mod proxies {
    use super::*;

    /// A server, a proxy to it, and a client on each.
    struct Stage {
        server: RedisServer,
        proxy: Proxy,
        direct: Raw,
    }

    impl Stage {
        fn set() -> Self {
            let server = RedisServer::start();
            let (proxy, direct) = (Proxy::start(server.port()), server.raw());
            Self { server, proxy, direct }
        }

        /// A client of the proxy that speaks this version of the protocol.
        fn client(&self, protocol: &str) -> Raw {
            let raw = Raw::connect(self.proxy.port());
            raw.cmd(&["HELLO", protocol]).ok();
            raw
        }

        fn get(&self, key: &str) -> Reply {
            self.direct.cmd(&["GET", key])
        }
    }

    fn send(raw: &Raw, line: &str) {
        let args: Vec<_> = line.split(' ').map(str::as_bytes).collect();
        raw.send(&args).expect("the connection stands");
    }

    fn is_cut(raw: &Raw) -> bool {
        let cut = raw.receive().expect_err("the connection is cut").kind();
        assert_ne!(cut, std::io::ErrorKind::TimedOut, "the connection is silent, not cut");
        true
    }

    #[tokio::test]
    async fn what_is_not_at_fault_passes_unchanged() {
        let stage = Stage::set();
        for protocol in ["2", "3"] {
            let raw = stage.client(protocol);
            let large = "x".repeat(1_000_000);
            raw.cmd(&["SET", "large", &large]).ok();
            assert_eq!(raw.cmd(&["GET", "large"]).text(), large);
            assert!(raw.cmd(&["NONSENSE"]).error().is_some());
            let values =
                "return {1, {'a', false}, {double = 1.5}, {map = {k = {set = {x = true}}}}}";
            let script = format!("redis.setresp(3) {values}");
            for _ in 0..2 {
                let through = raw.cmd(&["EVAL", &script, "0"]);
                stage.direct.cmd(&["HELLO", protocol]).ok();
                assert_eq!(through, stage.direct.cmd(&["EVAL", &script, "0"]));
            }
        }
        assert_eq!(stage.proxy.count(named("eval")), 4);
        stage.proxy.wait_connections(0).await;
        assert_eq!(stage.proxy.accepted(), 2);
        let commands = stage.proxy.commands();
        assert_eq!(commands[0], [b"HELLO".to_vec(), b"2".to_vec()]);
        stage.proxy.forget_commands();
        assert_eq!(stage.proxy.count(any()), 0);
    }

    #[tokio::test]
    async fn pipelined_commands_keep_their_replies() {
        let stage = Stage::set();
        let raw = stage.client("3");
        for i in 0..1_000 {
            send(&raw, &format!("ECHO {i}"));
        }
        for i in 0..1_000 {
            assert_eq!(raw.receive().expect("a reply").int(), i);
        }
    }

    #[tokio::test]
    async fn a_dropped_reply_is_lost_and_the_next_flow_on() {
        let stage = Stage::set();
        for protocol in ["2", "3"] {
            let raw = stage.client(protocol);
            let lost = stage.proxy.drop_reply(both(named("INCR"), mentioning("lost")), 2);
            for line in ["INCR kept", "INCR lost", "INCR lost", "INCR lost", "INCR kept"] {
                send(&raw, line);
            }
            let replies = [(); 3].map(|()| raw.receive().expect("a reply").int());
            assert_eq!(replies, [1, 3, 2]);
            assert_eq!(lost.hits(), 2);
            stage.direct.cmd(&["FLUSHALL"]).ok();
        }
    }

    #[tokio::test]
    async fn a_stopped_fault_happens_no_more() {
        let stage = Stage::set();
        let raw = stage.client("3");
        let lost = stage.proxy.drop_reply(any(), usize::MAX);
        send(&raw, "INCR k");
        lost.happened(1).await;
        lost.stop();
        assert_eq!(raw.cmd(&["INCR", "k"]).int(), 2);
    }

    #[tokio::test]
    async fn a_reply_is_lost_with_its_connection() {
        let stage = Stage::set();
        for protocol in ["2", "3"] {
            let raw = stage.client(protocol);
            let lost = stage.proxy.drop_reply_and_cut(named("SET"));
            send(&raw, "SET k v");
            assert!(is_cut(&raw));
            assert_eq!(stage.get("k").text(), "v");
            lost.happened(1).await;
            stage.client(protocol).cmd(&["SET", "k", "w"]).ok();
        }
    }

    #[tokio::test]
    async fn a_held_reply_holds_what_comes_after_it() {
        let stage = Stage::set();
        for protocol in ["2", "3"] {
            let (raw, other) = (stage.client(protocol), stage.client(protocol));
            let hold = stage.proxy.hold_reply(mentioning("held"));
            send(&raw, "SET held 1");
            send(&raw, "ECHO after");
            hold.held().await;
            assert_eq!(stage.get("held").text(), "1");
            assert_eq!(hold.answered().await, Some(Reply::Status("OK".into())));
            other.cmd(&["SET", "held", "2"]).ok();
            assert_eq!(raw.next_message(SILENCE), None);
            hold.release();
            assert_eq!(raw.receive().expect("a reply").text(), "OK");
            assert_eq!(raw.receive().expect("a reply").text(), "after");
        }
    }

    #[tokio::test]
    async fn a_held_command_holds_what_comes_after_it() {
        let stage = Stage::set();
        for protocol in ["2", "3"] {
            stage.direct.cmd(&["FLUSHALL"]).ok();
            let raw = stage.client(protocol);
            let hold = stage.proxy.hold_command(mentioning("held"));
            send(&raw, "SET before 1");
            send(&raw, "SET held 1");
            send(&raw, "SET after 1");
            hold.held().await;
            assert_eq!(raw.receive().expect("a reply").text(), "OK");
            assert!(stage.get("held").is_nil() && stage.get("after").is_nil());
            hold.release();
            assert_eq!(hold.answered().await, Some(Reply::Status("OK".into())));
            assert_eq!(raw.receive().expect("a reply").text(), "OK");
            assert_eq!(raw.receive().expect("a reply").text(), "OK");
            assert_eq!(stage.get("after").text(), "1");
        }
    }

    #[tokio::test]
    async fn a_hold_that_is_given_up_holds_nothing() {
        let stage = Stage::set();
        stage.proxy.hold_command(named("SET")).release();
        stage.client("3").cmd(&["SET", "k", "v"]).ok();
    }

    #[tokio::test]
    async fn a_ghost_arrives_on_the_old_connection_after_its_client_is_gone() {
        let stage = Stage::set();
        for leave in ["cut", "close"] {
            let raw = stage.client("3");
            let hold = stage.proxy.hold_command(named("APPEND"));
            send(&raw, "APPEND k ghost");
            hold.held().await;
            if leave == "cut" {
                stage.proxy.cut_client_side_only().await;
                assert!(is_cut(&raw));
            } else {
                drop(raw);
                stage.proxy.wait_connections(0).await;
            }
            assert_eq!(stage.proxy.upstream_connections(), 1);
            let again = stage.client("3");
            assert_eq!(again.cmd(&["APPEND", "k", "new-"]).int(), 4);
            hold.release();
            assert_eq!(hold.answered().await, Some(Reply::Int(9)));
            assert_eq!(stage.get("k").text(), "new-ghost");
            drop(again);
            eventually("old connections are gone", async || {
                stage.proxy.upstream_connections() == 0
            })
            .await;
            stage.direct.cmd(&["DEL", "k"]).ok();
        }
    }

    #[tokio::test]
    async fn a_ghost_whose_connection_is_killed_never_arrives() {
        let stage = Stage::set();
        let raw = stage.client("3");
        let id = raw.cmd(&["CLIENT", "ID"]).text();
        let hold = stage.proxy.hold_command(named("SET"));
        send(&raw, "SET k ghost");
        hold.held().await;
        stage.proxy.cut_client_side_only().await;
        assert_eq!(stage.direct.cmd(&["CLIENT", "KILL", "ID", &id]).int(), 1);
        hold.release();
        assert_eq!(hold.answered().await, None);
        assert!(stage.get("k").is_nil());
    }

    #[tokio::test]
    async fn cut_connections_are_gone_on_both_sides() {
        let stage = Stage::set();
        let clients = [stage.client("2"), stage.client("3")];
        let hold = stage.proxy.hold_command(any());
        send(&clients[0], "SET k v");
        hold.held().await;
        stage.proxy.cut_all().await;
        assert_eq!((stage.proxy.connections(), stage.proxy.upstream_connections()), (0, 0));
        assert!(clients.iter().all(is_cut));
        hold.release();
        assert_eq!(hold.answered().await, None);
        assert!(stage.get("k").is_nil());
        stage.client("3").cmd(&["PING"]).ok();
    }

    #[tokio::test]
    async fn a_killed_server_cuts_its_clients() {
        let mut stage = Stage::set();
        let raw = stage.client("3");
        stage.server.kill();
        assert!(is_cut(&raw));
        assert!(is_cut(&Raw::connect(stage.proxy.port())));
        stage.server.restart();
        stage.client("3").cmd(&["PING"]).ok();
    }

    #[tokio::test]
    async fn half_open_connections_are_silent_and_flow_on_later() {
        let stage = Stage::set();
        let old = stage.client("3");
        old.subscribe("c");
        stage.proxy.half_open(true);
        let new = Raw::connect(stage.proxy.port());
        send(&old, "SET old 1");
        send(&new, "SET new 1");
        stage.direct.cmd(&["PUBLISH", "c", "m"]).ok();
        assert_eq!(old.next_message(SILENCE), None);
        assert_eq!(new.next_message(SILENCE), None);
        assert_eq!(stage.proxy.count(named("SET")), 0);
        let known = stage.direct.cmd(&["CLIENT", "LIST"]).text().lines().count();
        assert_eq!(known, 2, "the server knows the direct client and the old one");
        assert!(stage.get("old").is_nil() && stage.get("new").is_nil());
        stage.proxy.half_open(false);
        assert_eq!(old.receive().expect("a reply").text(), "OK");
        assert_eq!(new.receive().expect("a reply").text(), "OK");
        assert_eq!(old.next_message(SOON).expect("a message").payload, "m");
    }

    #[tokio::test]
    async fn half_open_connections_can_be_cut() {
        let stage = Stage::set();
        let old = stage.client("3");
        stage.proxy.half_open(true);
        let new = Raw::connect(stage.proxy.port());
        stage.proxy.wait_connections(2).await;
        stage.proxy.cut_all().await;
        assert!(is_cut(&old) && is_cut(&new));
    }

    #[tokio::test]
    async fn refused_clients_are_reset_and_others_are_not() {
        let stage = Stage::set();
        let old = stage.client("3");
        stage.proxy.refuse(true);
        assert!(command(stage.proxy.port(), &["PING"]).is_err());
        old.cmd(&["PING"]).ok();
        assert_eq!((stage.proxy.connections(), stage.proxy.upstream_connections()), (1, 1));
        stage.proxy.refuse(false);
        stage.client("3").cmd(&["PING"]).ok();
        assert_eq!(stage.proxy.accepted(), 3);
    }

    #[tokio::test]
    async fn new_clients_go_to_the_new_target() {
        let (stage, other) = (Stage::set(), RedisServer::start());
        let old = stage.client("3");
        stage.proxy.retarget(other.port());
        let new = stage.client("3");
        old.cmd(&["SET", "k", "old"]).ok();
        new.cmd(&["SET", "k", "new"]).ok();
        assert_eq!(stage.get("k").text(), "old");
        assert_eq!(other.raw().cmd(&["GET", "k"]).text(), "new");
    }

    #[tokio::test]
    async fn messages_are_eaten_and_everything_else_passes() {
        let stage = Stage::set();
        for protocol in ["2", "3"] {
            let raw = stage.client(protocol);
            let [channel, pattern] = ["c", "*"].map(|name| format!("{protocol}{name}"));
            stage.proxy.eat_messages(true);
            raw.subscribe(&channel);
            raw.cmd(&["PSUBSCRIBE", &pattern]).ok();
            raw.cmd(&["SSUBSCRIBE", &channel]).ok();
            let before = stage.proxy.messages_eaten();
            assert_eq!(stage.direct.cmd(&["PUBLISH", &channel, "lost"]).int(), 2);
            assert_eq!(stage.direct.cmd(&["SPUBLISH", &channel, "lost"]).int(), 1);
            eventually("three messages are eaten", async || {
                stage.proxy.messages_eaten() == before + 3
            })
            .await;
            stage.proxy.eat_messages(false);
            assert_eq!(stage.direct.cmd(&["SPUBLISH", &channel, "kept"]).int(), 1);
            assert_eq!(raw.next_message(SOON).expect("a message").payload, "kept");
            raw.cmd(&["PING"]).ok();
        }
    }

    #[tokio::test]
    async fn confirmations_of_many_channels_are_one_reply() {
        let stage = Stage::set();
        for protocol in ["2", "3"] {
            let raw = stage.client(protocol);
            let lost = stage.proxy.drop_reply(named("SUBSCRIBE"), 1);
            send(&raw, "SUBSCRIBE a b c");
            lost.happened(1).await;
            assert_eq!(subscriptions(&stage.direct), 3);
            let lost = stage.proxy.drop_reply(named("UNSUBSCRIBE"), 1);
            send(&raw, "UNSUBSCRIBE");
            lost.happened(1).await;
            assert_eq!(subscriptions(&stage.direct), 0);
            // Nothing is subscribed now, and yet the server confirms once.
            let lost = stage.proxy.drop_reply(named("PUNSUBSCRIBE"), 1);
            send(&raw, "PUNSUBSCRIBE");
            lost.happened(1).await;
            let lost = stage.proxy.drop_reply(named("PING"), 1);
            send(&raw, "PING");
            send(&raw, "ECHO end");
            assert_eq!(raw.receive().expect("a reply").text(), "end");
            assert_eq!(lost.hits(), 1);
        }
    }

    #[tokio::test]
    async fn a_refused_subscription_is_one_reply() {
        let stage = Stage::set();
        stage.direct.cmd(&["ACL", "SETUSER", "u", "on", "nopass", "+@all", "resetchannels"]).ok();
        for protocol in ["2", "3"] {
            let raw = stage.client(protocol);
            raw.cmd(&["AUTH", "u", "any"]).ok();
            let lost = stage.proxy.drop_reply(named("SUBSCRIBE"), 1);
            send(&raw, "SUBSCRIBE a b c");
            send(&raw, "ECHO end");
            assert_eq!(raw.receive().expect("a reply").text(), "end");
            assert_eq!(lost.hits(), 1);
        }
    }

    #[tokio::test]
    async fn late_bytes_come_late_and_in_order() {
        const LATE: Duration = Duration::from_millis(50);
        let stage = Stage::set();
        let raw = stage.client("3");
        let begin = std::time::Instant::now();
        stage.proxy.delay_commands(LATE);
        stage.proxy.delay_replies(LATE);
        for i in 0..100 {
            send(&raw, &format!("ECHO {i}"));
        }
        assert_eq!(raw.receive().expect("a reply").int(), 0);
        assert!(begin.elapsed() >= 2 * LATE);
        for i in 1..100 {
            assert_eq!(raw.receive().expect("a reply").int(), i);
        }
        stage.proxy.delay_commands(Duration::ZERO);
        stage.proxy.delay_replies(Duration::ZERO);
        raw.cmd(&["PING"]).ok();
    }

    #[tokio::test]
    async fn a_command_is_waited_for() {
        let stage = Stage::set();
        let raw = stage.client("3");
        let sender = thread::spawn(move || {
            raw.cmd(&["SET", "a", "1"]).ok();
            raw.cmd(&["set", "b", "1"]).ok();
        });
        stage.proxy.wait_for(named("SET"), 2).await;
        stage.proxy.wait_for(both(named("set"), mentioning("b")), 1).await;
        sender.join().expect("the sender ends");
    }

    #[tokio::test]
    async fn commands_in_a_line_are_commands_too() {
        let stage = Stage::set();
        let stream = TcpStream::connect(("127.0.0.1", stage.proxy.port())).expect("a stream");
        let lost = stage.proxy.drop_reply(named("HELLO"), 1);
        (&stream).write_all(b"\r\nHELLO 3\r\nECHO  end\n").expect("sent");
        let mut line = String::new();
        BufReader::new(&stream).read_line(&mut line).expect("a reply");
        assert_eq!((&*line, lost.hits()), ("$3\r\n", 1));
        assert_eq!(
            stage.proxy.commands(),
            [[b"HELLO".to_vec(), b"3".into()], [b"ECHO".to_vec(), b"end".into()]]
        );
    }

    #[tokio::test]
    async fn what_is_no_resp_passes_too() {
        let stage = Stage::set();
        let mut stream = TcpStream::connect(("127.0.0.1", stage.proxy.port())).expect("a stream");
        stream.write_all(b"*nonsense\r\n").expect("sent");
        let mut text = String::new();
        stream.read_to_string(&mut text).expect("the server closes the connection");
        assert_eq!(text, "-ERR Protocol error: invalid multibulk length\r\n");
    }

    #[test]
    fn a_dropped_proxy_is_gone() {
        let stage = Stage::set();
        let raw = stage.client("3");
        let (port, other) = (stage.proxy.port(), stage.proxy.clone());
        drop(stage.proxy);
        raw.cmd(&["PING"]).ok();
        drop(other);
        assert!(is_cut(&raw));
        // A process that was just forked has all sockets of this one until it runs its program.
        until("the port is closed", || Raw::try_connect(port).is_err());
    }
}

mod helpers {
    use super::*;

    #[test]
    fn a_peer_leaves_what_redisson_leaves() {
        let server = RedisServer::start();
        let (raw, a, b) =
            (server.raw(), Redisson::connect(server.port()), Redisson::connect(server.port()));
        let ears = server.raw();
        ears.subscribe("redisson_lock__channel:{job}");

        assert_eq!(a.try_lock("job", 1, 30_000), None);
        assert_eq!(a.try_lock("job", 1, 20_000), None);
        assert_eq!(
            raw.cmd(&["HGETALL", "job"]).map().into_iter().collect::<Vec<_>>(),
            [(format!("{}:1", a.id()), "2".to_owned())]
        );
        assert!((1..=20_000).contains(&raw.cmd(&["PTTL", "job"]).int()));
        for left in [b.try_lock("job", 1, 30_000), a.try_lock("job", 2, 30_000)] {
            assert!((1..=20_000).contains(&left.expect("it is held")));
        }
        assert_eq!(b.unlock("job", 1, 30_000), None);

        assert_eq!(a.unlock("job", 1, 30_000), Some(false));
        assert_eq!(a.hold_count("job", 1), 1);
        assert!((20_001..=30_000).contains(&raw.cmd(&["PTTL", "job"]).int()));
        assert!(a.renew("job", 1, 40_000) && !b.renew("job", 1, 40_000));
        assert!((30_001..=40_000).contains(&raw.cmd(&["PTTL", "job"]).int()));
        assert_every_key_has_ttl(&raw);
        assert_eq!(ears.next_message(SILENCE), None);

        assert_eq!(a.unlock("job", 1, 30_000), Some(true));
        assert_eq!(ears.next_message(SOON).expect("the announcement").payload, "0");
        assert_no_keys(&raw);

        assert!(!b.force_unlock("job"));
        assert_eq!(ears.next_message(SILENCE), None);
        assert_eq!(a.try_lock("job", 1, 30_000), None);
        assert!(b.force_unlock("job"));
        assert_eq!(ears.next_message(SOON).expect("the announcement").payload, "0");
        assert_eq!(a.unlock("job", 1, 30_000), None);
        assert_no_keys(&raw);
    }

    #[test]
    fn names_with_a_brace_are_their_own_tag() {
        assert_eq!(Redisson::channel("a"), "redisson_lock__channel:{a}");
        assert_eq!(Redisson::channel("x{a}"), "redisson_lock__channel:x{a}");
    }

    #[test]
    fn peers_exclude_each_other() {
        let server = RedisServer::start();
        let history = History::new();
        let threads: Vec<_> = (0..4)
            .map(|nth| {
                let (peer, history) = (Redisson::connect(server.port()), history.clone());
                thread::spawn(move || {
                    for _ in 0..25 {
                        until("it is free", || peer.try_lock("job", 1, 30_000).is_none());
                        history.held("job", &format!("peer {nth}")).end();
                        assert_eq!(peer.unlock("job", 1, 30_000), Some(true));
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().expect("the peer ends"));
        history.assert_exclusive(100);
    }

    #[test]
    fn what_is_left_on_a_server_is_found() {
        let server = RedisServer::start();
        let raw = server.raw();
        raw.cmd(&["SET", "immortal", "1"]).ok();
        raw.cmd(&["SET", "mortal", "1", "PX", "60000"]).ok();
        assert_eq!(keys_without_ttl(&raw), ["immortal"]);
        assert!(panic::catch_unwind(|| assert_no_keys(&server.raw())).is_err());
        assert!(panic::catch_unwind(|| assert_every_key_has_ttl(&server.raw())).is_err());
        let (plain, sharded) = (server.raw(), server.raw());
        plain.subscribe("c");
        sharded.cmd(&["SSUBSCRIBE", "c"]).ok();
        assert_eq!(subscriptions(&raw), 2);
    }

    #[tokio::test]
    async fn blocking_work_leaves_the_runtime_free() {
        let server = RedisServer::start();
        let (ears, mouth) = (server.raw(), server.raw());
        ears.subscribe("c");
        let heard = tokio::spawn(blocking(move || ears.next_message(SOON)));
        tokio::task::yield_now().await;
        mouth.cmd(&["PUBLISH", "c", "m"]).ok();
        assert_eq!(heard.await.expect("no panic").expect("a message").payload, "m");
    }

    #[test]
    fn names_are_unique() {
        assert_ne!(unique("a"), unique("a"));
        assert!(unique("a").starts_with("a-"));
    }

    #[tokio::test]
    async fn events_are_captured_with_their_spans() {
        let capture = Capture::new();
        let guard = capture.install();
        let outer = tracing::info_span!("outer", lock = "job", late = tracing::field::Empty);
        outer.in_scope(|| {
            outer.record("late", 7);
            tracing::debug_span!("inner")
                .in_scope(|| tracing::trace!(count = 2, "it is {}", "held"));
        });
        capture.wait_for("it is recorded", |event| event.message == "it is held").await;
        drop(guard);
        tracing::error!("not recorded");

        let [event] = &capture.events()[..] else { panic!("one event: {capture:?}") };
        assert_eq!(event.level, tracing::Level::TRACE);
        assert_eq!(
            event.spans.iter().map(|span| span.name).collect::<Vec<_>>(),
            ["outer", "inner"]
        );
        assert_eq!(
            ["count", "lock", "late", "none"].map(|name| event.field(name)),
            [Some("2"), Some("job"), Some("7"), None]
        );
        assert_eq!(capture.saying("is held").len(), 1);
    }
}
