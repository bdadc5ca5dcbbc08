//! A password is nobody's business.

use super::*;
use crate::support::Capture;
use std::fmt::{Debug, Display, Write};

const PASSWORD: &str = "s3ntinel-pw";

/// An error, and whatever it says is behind it, in both forms.
fn chain(error: &leasehold::Error) -> String {
    let mut text = format!("{error} {error:?} {error:#?}");
    let mut source = std::error::Error::source(error);
    while let Some(error) = source {
        write!(text, " {error} {error:?}").unwrap();
        source = error.source();
    }
    text
}

#[track_caller]
fn assert_hidden(what: impl Display) {
    let text = what.to_string();
    assert!(!text.contains(PASSWORD), "{text}");
}

#[track_caller]
fn assert_debug_hides(what: &impl Debug) {
    assert_hidden(format!("{what:?} {what:#?}"));
}

/// All that was logged, at every level.
fn logged(capture: &Capture) -> String {
    format!("{:?}", capture.events())
}

fn protect(raw: &Raw) {
    raw.cmd(&["ACL", "SETUSER", "u", "on", &format!(">{PASSWORD}"), "~*", "&*", "+@all"]).ok();
}

#[tokio::test]
async fn a_password_is_in_no_debug_output_and_no_event() {
    let capture = Capture::global();
    let server = RedisServer::start();
    protect(&server.raw());
    let proxy = Proxy::start(server.port());
    let url = format!("redis://u:{PASSWORD}@127.0.0.1:{}/0", proxy.port());
    let name = crate::support::unique("secret");
    let builder = Client::builder(&url).unwrap().watchdog(Duration::from_secs(3));
    assert_debug_hides(&builder);
    let client = builder.connect().await.unwrap();
    let lock = client.lock(&name);
    let guard = within(lock.lock()).await.unwrap();
    assert_debug_hides(&client);
    assert_debug_hides(&lock);
    assert_debug_hides(&guard);
    assert_debug_hides(&guard.owner());
    assert_debug_hides(&guard.holder());
    let before = guard.valid_until();
    eventually("it is renewed", async || guard.valid_until() > before).await;
    proxy.cut_all().await;
    within(guard.unlock()).await.unwrap();
    client.close().await;
    let error = within(lock.lock()).await.unwrap_err();
    assert_hidden(chain(&error));
    let ours = |event: &crate::support::Event| event.field("lock") == Some(&*name);
    assert!(capture.events().iter().any(ours), "something was logged");
    assert_hidden(logged(capture));
}

#[tokio::test]
async fn a_password_is_in_no_error_of_a_failed_login() {
    let capture = Capture::global();
    let server = RedisServer::builder().args(["--requirepass", "other"]).start();
    let nobody = crate::support::server::free_port();
    for port in [server.port(), nobody] {
        for user in ["u", "", "default", PASSWORD] {
            let url = format!("redis://{user}:{PASSWORD}@127.0.0.1:{port}/");
            let error = within(Client::connect(&url)).await.unwrap_err();
            assert_hidden(chain(&error));
            let client = within(impatient(&url).connect_lazy()).await.unwrap();
            assert_debug_hides(&client);
            let name = crate::support::unique("secret");
            let error = lock(&client.lock(name)).await.unwrap_err();
            assert_hidden(chain(&error));
        }
    }
    assert_hidden(logged(capture));
}

#[test]
fn a_password_is_in_no_error_of_a_bad_url() {
    let bad = [
        "http://u:PW@host/",
        "redis//u:PW@host",
        "PW",
        "redis:PW",
        "PW://host",
        "redis://u:PW@host:99999999/",
        "redis://u:PW@host:PW/",
        "redis://u:PW@/",
        "redis://u:PW@host/PW",
        "redis://u:PW@host/notanumber",
        "redis://u:PW@host/999",
        "redis://u:PW@[::1/",
        "redis-cluster://u:PW@",
        "redis-sentinel://u:PW@host:1",
        "redis-sentinel://u:PW@host:1/0?sentinelServiceName=",
        "redis-sentinel://u:x@host:1/0?sentinelServiceName=m&sentinelPassword=PW",
        "redis-sentinel://u:x@host:1/0?sentinelServiceName=m&sentinelUsername=PW",
        "rediss://u:PW@host",
        "redis+unix:///tmp/none?password=PW",
        "redis://u:%50W@ho st",
    ];
    for url in bad.map(|url| url.replace("PW", PASSWORD)) {
        match Client::builder(&url) {
            Ok(builder) => assert_debug_hides(&builder),
            Err(error) => assert_hidden(chain(&error)),
        }
    }
}
