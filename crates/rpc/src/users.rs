//! The users, groups and DNS domain of this host, by which NFSv4 names the owners of files (RFC 8881 §5.9).

/// A user or a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Who {
    /// A user.
    User,
    /// A group.
    Group,
}

/// A source of names and IDs. Its methods can block for a long time.
pub trait Host: Send + Sync {
    /// Returns the name of a user or group.
    fn name(&self, who: Who, id: u32) -> Option<String>;
    /// Returns the ID of the user or group with this name.
    fn id(&self, who: Who, name: &str) -> Option<u32>;
}

/// The names of this host, from the name service switch.
pub struct System;

impl Host for System {
    fn name(&self, who: Who, id: u32) -> Option<String> {
        match who {
            Who::User => uzers::get_user_by_uid(id)?.name().to_str().map(str::to_owned),
            Who::Group => uzers::get_group_by_gid(id)?.name().to_str().map(str::to_owned),
        }
    }

    fn id(&self, who: Who, name: &str) -> Option<u32> {
        match who {
            Who::User => uzers::get_user_by_name(name).map(|user| user.uid()),
            Who::Group => uzers::get_group_by_name(name).map(|group| group.gid()),
        }
    }
}

/// Parses a decimal number in exactly the form in which numbers are sent.
pub fn number(text: &str) -> Option<u32> {
    let plain = text.bytes().all(|byte| byte.is_ascii_digit()) && (text == "0" || !text.starts_with('0'));
    // System calls take the largest number to mean "do not change".
    text.parse().ok().filter(|&id| plain && id != u32::MAX)
}

/// Returns `true` if `text` can be the name of a user or group. Names with characters that have a meaning in NFSv4 or
/// in the host's databases are rejected.
pub fn is_name(text: &str) -> bool {
    let strange = |c: char| c.is_control() || matches!(c, '@' | ':' | '/');
    !text.is_empty() && text.len() <= NAME_MAX && !text.contains(strange) && !text.bytes().all(|b| b.is_ascii_digit())
}

/// Returns the DNS domain of this host, as idmapd.conf(5) does by default: that of the host's name, or else the first one
/// that resolv.conf(5) names, or else `localdomain`.
pub fn default_domain() -> String {
    let host = rustix::system::uname();
    let resolver = std::fs::read_to_string("/etc/resolv.conf").unwrap_or_default();
    domain_of(&host.nodename().to_string_lossy(), &resolver)
}

fn domain_of(host: &str, resolver: &str) -> String {
    let named = resolver.lines().find_map(|line| {
        let mut words = line.split_whitespace();
        words.next().filter(|key| matches!(*key, "domain" | "search")).and(words.next())
    });
    let own = host.split_once('.').map(|(_, domain)| domain);
    let found =
        [own, named].into_iter().flatten().map(|domain| domain.trim_matches('.')).find(|domain| is_domain(domain));
    found.unwrap_or("localdomain").to_ascii_lowercase()
}

/// Returns `true` if `text` has the form of a DNS domain.
pub fn is_domain(text: &str) -> bool {
    let part = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
    text.len() <= 255 && text.split('.').all(part)
}

const NAME_MAX: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn domain_is_that_of_the_name_of_the_host_or_of_the_resolver() {
        assert_eq!(domain_of("nas.Example.com", "search other.org"), "example.com");
        assert_eq!(domain_of("nas", "nameserver 10.0.0.1\n# search no\nsearch a.org b.org\n"), "a.org");
        assert_eq!(domain_of("nas", "domain b.org."), "b.org");
        assert_eq!(domain_of("nas", "search"), "localdomain");
        assert_eq!(domain_of("nas.bad domain", "search ."), "localdomain");
    }
}
