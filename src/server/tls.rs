//! TLS: whose certificates are believed, and which is ours.

use crate::error::Error;
use fred::types::config::TlsConnector;
use std::fmt;

/// What the user said about TLS; nothing of it means the system's authorities and no certificate.
#[derive(Clone, Default)]
pub(crate) struct Tls {
    /// Certificates of authorities, in PEM; each text may hold several.
    authorities: Vec<Vec<u8>>,
    identity: Option<Identity>,
}

/// A certificate of ours with those between it and an authority, and its key, in PEM.
#[derive(Clone)]
struct Identity {
    chain: Vec<u8>,
    key: Vec<u8>,
}

/// There is a private key in it.
impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tls")
    }
}

impl Tls {
    pub(crate) fn trust(&mut self, pem: &[u8]) {
        self.authorities.push(pem.to_vec());
    }

    pub(crate) fn identify(&mut self, chain: &[u8], key: &[u8]) {
        self.identity = Some(Identity { chain: chain.to_vec(), key: key.to_vec() });
    }
}

fn bad_authority(why: impl fmt::Display) -> Error {
    Error::invalid_url(format!("the CA certificate cannot be used: {why}"))
}

fn bad_identity(why: impl fmt::Display) -> Error {
    Error::invalid_url(format!("the client certificate cannot be used: {why}"))
}

#[cfg(feature = "tls-rustls")]
mod library {
    use super::*;
    use fred::rustls::crypto::ring;
    use fred::rustls::pki_types::pem::{self, PemObject};
    use fred::rustls::pki_types::{CertificateDer, PrivateKeyDer};
    use fred::rustls::{ClientConfig, RootCertStore};
    use std::sync::Arc;

    impl Tls {
        /// What fred needs to connect.
        pub(crate) fn connector(&self) -> Result<TlsConnector, Error> {
            // Named, not left to the process: rustls panics where two are compiled in.
            let provider = Arc::new(ring::default_provider());
            let builder = ClientConfig::builder_with_provider(provider)
                .with_safe_default_protocol_versions()
                .map_err(|error| Error::invalid_url(format!("TLS cannot be used: {error}")))?
                .with_root_certificates(self.roots()?);
            let Some(identity) = &self.identity else {
                return Ok(builder.with_no_client_auth().into());
            };
            let chain = certificates(&identity.chain).map_err(bad_identity)?;
            let key = PrivateKeyDer::from_pem_slice(&identity.key)
                .map_err(|error| bad_identity(bad_pem(&error, "private key")))?;
            Ok(builder.with_client_auth_cert(chain, key).map_err(bad_identity)?.into())
        }

        fn roots(&self) -> Result<RootCertStore, Error> {
            let mut roots = RootCertStore::empty();
            if self.authorities.is_empty() {
                // A bad one among the system's is no reason to trust none.
                let system = fred::rustls_native_certs::load_native_certs();
                roots.add_parsable_certificates(system.certs);
                if roots.is_empty() {
                    return Err(bad_authority(
                        "this system has none: install its package of CA certificates, or name \
                         one by Builder::tls_ca",
                    ));
                }
            }
            for pem in &self.authorities {
                for authority in certificates(pem).map_err(bad_authority)? {
                    roots.add(authority).map_err(|error| {
                        bad_authority(format!("it cannot be read as one: {error}"))
                    })?;
                }
            }
            Ok(roots)
        }
    }

    fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
        let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
        let read = match read {
            Ok(none) if none.is_empty() => Err(pem::Error::NoItemsFound),
            read => read,
        };
        read.map_err(|error| bad_pem(&error, "certificate"))
    }

    /// In words of our own: the library's may hold a line of the file, and that a part of a key.
    fn bad_pem(error: &pem::Error, what: &str) -> String {
        match error {
            pem::Error::NoItemsFound => format!("there is no {what} in PEM"),
            _ => format!("the PEM of its {what} is damaged"),
        }
    }
}

#[cfg(not(feature = "tls-rustls"))]
mod library {
    use super::*;
    use fred::native_tls;

    impl Tls {
        /// What fred needs to connect.
        pub(crate) fn connector(&self) -> Result<TlsConnector, Error> {
            let mut builder = native_tls::TlsConnector::builder();
            builder.disable_built_in_roots(!self.authorities.is_empty());
            for pem in &self.authorities {
                let found = native_tls::Certificate::stack_from_pem(pem).map_err(bad_authority)?;
                if found.is_empty() {
                    return Err(bad_authority("there is no certificate in PEM"));
                }
                for authority in found {
                    builder.add_root_certificate(authority);
                }
            }
            if let Some(Identity { chain, key }) = &self.identity {
                let identity = native_tls::Identity::from_pkcs8(chain, key);
                builder.identity(identity.map_err(bad_identity)?);
            }
            // Only here it looks whether certificate and key belong together.
            let built = builder.build().map_err(|error| match self.identity {
                Some(_) => bad_identity(error),
                None => Error::invalid_url(format!("TLS cannot be used: {error}")),
            })?;
            Ok(built.into())
        }
    }
}
