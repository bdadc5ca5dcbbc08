//! Reading answers: integers first, then texts, as every script's header says.

use crate::server::Text;
use fred::types::Value;

/// The answer to one call: the entry's integer, and its text if the code has one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub code: i64,
    pub text: Option<String>,
}

/// How a call ended without an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum CallError {
    /// It was not sent, and will not be.
    NotSent(String),
    /// It was sent, and may or may not have run.
    Unknown(String),
    /// The server refused it with this error; nothing was done.
    Refused(String),
    /// It was done, and too few replicas are known to have it.
    Short(Short),
}

/// How many replicas have what was written, where that is too few.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Short {
    pub required: u8,
    pub acknowledged: u8,
    /// The server would not say: this is its error.
    pub refused: Option<String>,
}

/// Splits a reply of a list of `entries` calls into one answer for each.
///
/// `has_text` says which codes are followed by a text. `None` if the reply is not of that shape.
pub(crate) fn answers(
    reply: Value,
    entries: usize,
    has_text: fn(i64) -> bool,
) -> Option<Vec<Answer>> {
    let Value::Array(values) = reply else {
        return None;
    };
    if values.len() < entries {
        return None;
    }
    let mut values = values.into_iter();
    let codes: Option<Vec<i64>> = values.by_ref().take(entries).map(|v| v.as_i64()).collect();
    let answers = codes?.into_iter().map(|code| {
        let text = if has_text(code) { Some(shown(values.next()?)?) } else { None };
        Some(Answer { code, text })
    });
    answers.collect()
}

/// One integer and whatever texts follow it.
pub(crate) fn code_and_texts(reply: Value) -> Option<(i64, Vec<String>)> {
    let Value::Array(values) = reply else {
        return None;
    };
    let mut values = values.into_iter();
    let code = values.next()?.as_i64()?;
    let texts: Option<Vec<String>> = values.map(shown).collect();
    Some((code, texts?))
}

/// A text as it can be shown: the holder of a lock that others share may be any bytes.
fn shown(value: Value) -> Option<String> {
    match value {
        Value::Bytes(bytes) => Some(String::from_utf8_lossy(&bytes).into_owned()),
        other => other.into_string(),
    }
}

/// A text argument.
pub(crate) fn text(text: &Text) -> Value {
    Value::String(text.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(values: Vec<Value>) -> Value {
        Value::Array(values)
    }

    #[test]
    fn texts_go_to_the_codes_that_have_one() {
        let reply = list(vec![0.into(), (-2).into(), 7.into(), "OOM".into(), "u:1".into()]);
        let answers = answers(reply, 3, |code| code == -2 || code > 0).unwrap();
        assert_eq!(answers[0], Answer { code: 0, text: None });
        assert_eq!(answers[1], Answer { code: -2, text: Some("OOM".into()) });
        assert_eq!(answers[2], Answer { code: 7, text: Some("u:1".into()) });
    }

    #[test]
    fn texts_that_are_no_utf_8_are_shown_as_far_as_they_can_be() {
        let holder = || Value::Bytes(b"\xfftoken".as_slice().into());
        let answers = answers(list(vec![7.into(), holder()]), 1, |_| true).unwrap();
        assert_eq!(answers[0], Answer { code: 7, text: Some("\u{fffd}token".into()) });
        let texts = vec!["\u{fffd}token".to_owned()];
        assert_eq!(code_and_texts(list(vec![7.into(), holder()])), Some((7, texts)));
    }

    #[test]
    fn replies_of_another_shape_are_not_read() {
        assert_eq!(answers(Value::Null, 1, |_| false), None);
        assert_eq!(answers(list(vec![]), 1, |_| false), None);
        assert_eq!(answers(list(vec!["x".into()]), 1, |_| false), None);
        assert_eq!(answers(list(vec![(-2).into()]), 1, |_| true), None);
        assert_eq!(code_and_texts(list(vec!["message".into()])), None);
    }
}
