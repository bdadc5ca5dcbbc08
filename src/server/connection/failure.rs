//! Why no connection could be made, in words for whoever set it up.

use super::is_error_reply;
use crate::error::Error;
use crate::server::address::Address;
use fred::error::ErrorKind;

/// The error for who called `connect`.
pub(super) fn connect_error(address: &Address, error: &fred::error::Error) -> Error {
    let text = error.details();
    if is_error_reply(text) {
        // What fred says first.
        let hello = text.starts_with("NOPROTO")
            || (text.starts_with("ERR unknown command") && text.contains("HELLO"));
        if hello {
            let why = "it does not know HELLO 3, so it does not speak RESP3; needed is Redis 7.0 or \
                       Valkey 7.2, without a proxy that speaks RESP2 only";
            return Error::server(None, &format!("{text} ({why})"));
        }
        return Error::server(None, text);
    }
    let why = explain(error, address.uses_tls());
    match why {
        Why::Tls(why) => Error::tls(&format!("{address:?}"), &why),
        Why::Away(why) => {
            Error::unavailable(None, &format!("connecting to {address:?} failed: {why}"), false)
        }
    }
}

/// The same in one line, for the log.
pub(super) fn words(error: &fred::error::Error, tls: bool) -> String {
    let (Why::Tls(why) | Why::Away(why)) = explain(error, tls);
    why
}

#[derive(Debug, PartialEq)]
enum Why {
    /// The two did not come to terms about TLS: trying again is of no use.
    Tls(String),
    Away(String),
}

fn explain(error: &fred::error::Error, tls: bool) -> Why {
    let cause = cause(error.details());
    if tls {
        if let Some(why) = tls_cause(cause) {
            return Why::Tls(why);
        }
    }
    let hint = match error.kind() {
        ErrorKind::Timeout if tls => " (so does a port without TLS, which is for redis://)",
        // Where the alert that would say so is lost behind the reset.
        ErrorKind::IO if tls && cause.contains("reset by peer") => {
            " (so does a server that does not accept our client certificate, or that there is none)"
        }
        ErrorKind::IO if !tls && cause.contains("reset by peer") => {
            " (so does a port with TLS, which is for rediss://)"
        }
        ErrorKind::Protocol if !tls => " (a port with TLS is for rediss://)",
        _ => "",
    };
    let cause =
        if *error.kind() == ErrorKind::Timeout { "it did not answer in time" } else { cause };
    Why::Away(format!("{cause}{hint}"))
}

/// fred gives an io error as its `Debug`: what stands in there for people.
fn cause(text: &str) -> &str {
    let inside = |before: &str| {
        let (_, rest) = text.split_once(before)?;
        Some(rest.strip_suffix(" }")?.trim_matches('"'))
    };
    match text.split_once(' ').map(|(first, _)| first) {
        Some("Os") => inside("message: ").unwrap_or(text),
        Some("Custom") => inside("error: ").unwrap_or(text),
        _ => text,
    }
}

/// What rustls or the system's library say, as far as it is about certificates and protocols.
fn tls_cause(cause: &str) -> Option<String> {
    let has = |words: &[&str]| words.iter().any(|word| cause.contains(word));
    let why = if has(&[
        "(UnknownIssuer",
        "(BadSignature",
        "issuer certificate",
        "self-signed",
        "self signed",
    ]) {
        "its certificate is not from an authority that is trusted here (name one by \
         Builder::tls_ca)"
    } else if has(&["NotValidForName", "ostname mismatch", "IP address mismatch"]) {
        "its certificate is for another name than the one in the URL"
    } else if has(&["(Expired", "certificate has expired"]) {
        // No more: what the library adds tells the time, and each cause is told once.
        return Some("its certificate has expired".to_owned());
    } else if has(&["(NotValidYet", "not yet valid"]) {
        return Some("its certificate is not valid yet".to_owned());
    } else if has(&["(CertificateRequired", "certificate required"]) {
        "it asks for a client certificate (Builder::tls_client_identity)"
    } else if has(&[
        "AlertReceived(UnknownCA",
        "AlertReceived(BadCert",
        "AlertReceived(Cert",
        "alert unknown ca",
        "alert bad cert",
        "alert certificate",
    ]) {
        "it does not accept our client certificate"
    } else if has(&["InvalidMessage(", "InvalidContentType", "wrong version number"]) {
        "what it answers is not TLS (a port without TLS is for redis://)"
    } else if has(&["InvalidCertificate(", "certificate verify failed"]) {
        "its certificate cannot be accepted"
    } else if has(&["AlertReceived(", "PeerIncompatible(", "PeerMisbehaved(", "SSL routines"]) {
        "the two cannot agree"
    } else if has(&["InvalidDnsName"]) {
        "the host in the URL cannot be in a certificate"
    } else {
        return None;
    };
    Some(format!("{why}: {cause}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use fred::error::Error as FredError;

    #[test]
    fn what_the_system_says_is_told_without_its_wrapping() {
        let text = "Os { code: 111, kind: ConnectionRefused, message: \"Connection refused\" }";
        assert_eq!(cause(text), "Connection refused");
        let text = "Custom { kind: Uncategorized, error: \"failed to lookup address\" }";
        assert_eq!(cause(text), "failed to lookup address");
        assert_eq!(cause("Request timed out."), "Request timed out.");
        assert_eq!(cause(""), "");
    }

    #[test]
    fn causes_of_tls_count_only_where_it_is_used() {
        let text = "Custom { kind: InvalidData, error: InvalidCertificate(UnknownIssuer) }";
        let error = FredError::new(ErrorKind::IO, text);
        let Why::Tls(why) = explain(&error, true) else { panic!("it is of TLS") };
        assert!(why.contains("Builder::tls_ca"), "{why}");
        assert!(matches!(explain(&error, false), Why::Away(_)));
    }
}
