//! Calls beside all holds: looking at a name, freeing it by force, and what semaphores and latches
//! have of their own.

use crate::engine::Engine;
use crate::engine::queue::passes;
use crate::engine::recipe::{Key, Kind, Mode, Recipe};
use crate::engine::settled::RESENDS;
use crate::error::{Error, Refusal, refusal};
use crate::lease::Moment;
use crate::server::reply::{CallError, code_and_texts};
use crate::server::script::Script;
use crate::server::{Argument, Text};
use std::time::Duration;

/// How long a call that waits for nothing rides out what a cluster refuses it for.
const RIDDEN_OUT: Duration = Duration::from_secs(1);

/// A code and texts, as the script's header says.
type Told = (i64, Vec<String>);

impl Engine {
    /// A kind's recipe for a name, if it can be used.
    pub(crate) fn recipe(&self, kind: &'static Kind, name: &str) -> Result<Recipe, Error> {
        let keys = (kind.keys)(name, &self.uuid)?;
        if self.wiring.address.is_cluster() && !keys.share_a_slot() {
            let why = "in a cluster its braces must pair, or key and channel part ways";
            return Err(Error::invalid_name(name, why));
        }
        Ok(Recipe { kind, keys })
    }

    /// Looks at a name.
    pub(crate) async fn inspect(&self, recipe: &Recipe, mode: Mode) -> Result<Told, Error> {
        let direct = recipe.kind.inspect.as_ref().expect("every kind of lock can be looked at");
        let args = Vec::from_iter(direct.by_mode.then(|| mode_text(mode)));
        self.run(recipe, direct.script, direct.keys, args).await
    }

    /// Frees a name from whoever holds it in this mode, or only from one.
    pub(crate) async fn force_release(
        &self,
        recipe: &Recipe,
        mode: Mode,
        holder: &str,
    ) -> Result<Told, Error> {
        let direct = recipe.kind.force_release.as_ref().expect("every kind of lock has one");
        let mut args = vec![Text::from(holder)];
        args.extend(direct.by_mode.then(|| mode_text(mode)));
        args.push(Text::from_static(self.publish(recipe)));
        self.run(recipe, direct.script, direct.keys, args).await
    }

    /// Runs a script that is no list; it is not sent again if no answer comes.
    pub(crate) async fn run(
        &self,
        recipe: &Recipe,
        script: &'static Script,
        keys: &[Key],
        args: Vec<impl Into<Argument>>,
    ) -> Result<Told, Error> {
        let args: Vec<Argument> = args.into_iter().map(Into::into).collect();
        let name = Some(&*recipe.keys.lock);
        let shown = Moment::now().saturating_add(RIDDEN_OUT);
        let answer = loop {
            match self.send(recipe, script, keys, &args).await {
                // Nothing has run. It passes when the slot has moved, or a replica took over.
                Err(CallError::Refused(text))
                    if refusal(&text) == Refusal::Cluster
                        && passes(&text)
                        && Moment::now() < shown =>
                {
                    self.pause().await;
                }
                answer => break answer,
            }
        };
        match answer {
            Ok(told) => told,
            Err(CallError::Refused(text)) => Err(Error::server(name, &text)),
            Err(CallError::NotSent(_)) if self.has_ended() => Err(Error::closed()),
            Err(CallError::NotSent(why)) => Err(Error::unavailable(name, &why, false)),
            Err(CallError::Unknown(why)) => Err(Error::no_reply(name, &why)),
            Err(CallError::Short(short)) => Err(Error::short(&recipe.keys.lock, &short)),
        }
    }

    /// Runs a script of which the server keeps a record: it is sent again until an answer comes,
    /// for as long as the client has patience and the record stands, and counts once.
    ///
    /// `args` gets the number of the call, and what earlier ones are settled.
    pub(crate) async fn run_recorded(
        &self,
        recipe: &Recipe,
        script: &'static Script,
        keys: &[Key],
        args: impl FnOnce(Text, Text) -> Vec<Text>,
    ) -> Result<Told, Error> {
        let name = Some(&*recipe.keys.lock);
        let id = self.next_id();
        let args = args(id.to_string().into(), self.settled.take(recipe));
        let args: Vec<Argument> = args.into_iter().map(Argument::Text).collect();
        let mut end = Moment::now().saturating_add(self.settings().patience);
        let mut unsure = None;
        loop {
            let sent = Moment::now();
            match self.send(recipe, script, keys, &args).await {
                Ok(told) => {
                    self.settle(recipe, id, unsure.is_some());
                    return told;
                }
                Err(CallError::Refused(text)) if !passes(&text) => {
                    return Err(Error::server(name, &text));
                }
                Err(CallError::Unknown(why)) => {
                    if unsure.is_none() {
                        end = end.min(sent.saturating_add(RESENDS));
                    }
                    unsure = Some(why);
                }
                Err(CallError::NotSent(_)) if unsure.is_none() && self.has_ended() => {
                    return Err(Error::closed());
                }
                Err(CallError::Short(short)) => {
                    return Err(Error::short(&recipe.keys.lock, &short));
                }
                Err(CallError::Refused(why) | CallError::NotSent(why)) => {
                    if Moment::now() >= end {
                        return Err(match unsure {
                            Some(why) => Error::no_reply(name, &why),
                            None => Error::unavailable(name, &why, false),
                        });
                    }
                }
            }
            // What was sent before must have run, or never will, before this is sent again.
            let left = Moment::now().until(end);
            if left.is_zero()
                || self.has_ended()
                || !self.settled_within(recipe.keys.slot, left).await
            {
                return Err(match unsure {
                    Some(why) => Error::no_reply(name, &why),
                    None => Error::unavailable(name, "the connection is down", false),
                });
            }
            self.pause().await;
        }
    }

    /// Whether the connection was settled in time.
    async fn settled_within(&self, slot: u16, time: Duration) -> bool {
        // On a task of our own: the caller may be on a thread without a runtime, and its timers.
        let connection = self.batch.connection().clone();
        let settled =
            async move { tokio::time::timeout(time, connection.settled_at(slot)).await.is_ok() };
        self.wiring.runtime.spawn(settled).await.unwrap_or(false)
    }

    async fn send(
        &self,
        recipe: &Recipe,
        script: &'static Script,
        keys: &[Key],
        args: &[Argument],
    ) -> Result<Result<Told, Error>, CallError> {
        let name = Some(&*recipe.keys.lock);
        let keys: Vec<Text> = keys.iter().map(|key| recipe.key(key)).collect();
        let connection = self.batch.connection();
        let reply = connection.run_with(script, recipe.keys.slot, &keys, args).await?;
        Ok(code_and_texts(reply)
            .ok_or_else(|| Error::server(name, &format!("ERR strange reply to {}", script.name))))
    }
}

fn mode_text(mode: Mode) -> Text {
    Text::from_static(match mode {
        Mode::Exclusive => "write",
        Mode::Shared => "read",
    })
}
