//! What a server is like, as far as it tells: never a condition for using it.

use super::Connection;

impl Connection {
    /// The policies by which servers would remove keys that have a TTL, as locks do, to make room.
    pub(crate) async fn evictions(&self) -> Vec<String> {
        let mut policies = Vec::new();
        for server in self.servers() {
            match self.on(&server, "INFO", &["memory"]).await {
                Ok(info) => policies.extend(info.as_str().and_then(|info| eviction(&info))),
                Err(error) => {
                    tracing::debug!(%error, "the eviction policy is not known (INFO memory)");
                }
            }
        }
        policies.sort();
        policies.dedup();
        policies
    }
}

/// Reads the reply of INFO memory: the policy, if there is a limit and keys are removed at it.
fn eviction(info: &str) -> Option<String> {
    let value = |key: &str| {
        let mut fields = info.lines().filter_map(|line| line.split_once(':'));
        fields.find(|(name, _)| *name == key).map(|(_, value)| value.trim())
    };
    let policy = value("maxmemory_policy")?;
    let limited = value("maxmemory").is_some_and(|limit| limit != "0");
    let evicts = policy.starts_with("allkeys-") || policy.starts_with("volatile-");
    (limited && evicts).then(|| policy.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_limit_with_a_policy_evicts() {
        let info = |limit, policy| {
            let lines = format!("maxmemory:{limit}\r\nmaxmemory_policy:{policy}\r\n");
            eviction(&format!("# Memory\r\n{lines}"))
        };
        assert_eq!(info("1000", "allkeys-lru").as_deref(), Some("allkeys-lru"));
        assert_eq!(info("1000", "volatile-ttl").as_deref(), Some("volatile-ttl"));
        assert_eq!(info("1000", "noeviction"), None);
        assert_eq!(info("0", "allkeys-lru"), None);
        assert_eq!(eviction("nothing"), None);
    }
}
