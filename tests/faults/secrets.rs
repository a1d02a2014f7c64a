//! No error text contains a password, whichever request fails.

use super::world::{L, R, T, about, scenario_on};
use crate::support::observer::{Event, Seen, texts};
use crate::support::prelude::*;
use crate::support::proxy::{Do, Then, Which, verb};
use crate::support::talk::saying;

const PASSWORD: &str = "S3CR3T-hunter2";

#[derive(Default)]
struct Said(String);

impl Said {
    fn add(&mut self, text: impl AsRef<str>) {
        self.0.push_str(text.as_ref());
        self.0.push('\n');
    }

    fn error(&mut self, error: &leasehold::Error) -> ErrorKind {
        self.add(texts(error));
        self.add(format!("{error:#?}"));
        error.kind()
    }

    fn outcome(&mut self, outcome: &leasehold::Result<()>) {
        match outcome {
            Ok(()) => self.add("well"),
            Err(error) => assert_ne!(self.error(error), ErrorKind::InvalidInput),
        }
    }

    fn assert_silent(&self) {
        for part in [PASSWORD, "S3CR3T", "hunter2"] {
            let line = self.0.lines().find(|line| line.contains(part));
            assert_eq!(line, None, "the password is visible");
        }
        assert!(self.0.lines().count() > 3, "nothing was said at all: {:?}", self.0);
    }
}

#[test]
fn no_failure_of_a_running_client_shows_its_password() {
    let user = |builder: crate::support::server::Builder| {
        builder.user(&format!("locks on >{PASSWORD} ~* &* +@all -subscribe -hget"))
    };
    scenario_on(user, |world| {
        let mut said = Said::default();
        let seen = Seen::default();
        let url = world.proxy.url().replace("redis://", &format!("redis://locks:{PASSWORD}@"));
        let builder = world.builder_to(&url).lease(2 * L).observer(seen.clone());
        said.add(format!("{builder:?} {builder:#?}"));
        let client = builder.build().unwrap();
        let guard = client.get_lock("secret").acquire().unwrap();
        said.add(format!(
            "{client:?} {guard:?} {:?} {:#?}",
            client.get_lock("secret"),
            client.get_fenced_lock("secret")
        ));
        assert_eq!(said.error(&client.get_lock("secret").hold_count().unwrap_err()), ErrorKind::NoPermission);
        let held = world.direct_as(PASSWORD).get_lock("busy").acquire().unwrap();
        assert!(!client.get_lock("busy").try_lock_for(T).unwrap());
        seen.wait_for("the lack of wake-ups", |event| matches!(event, Event::NoWakeups(_)));
        held.unlock().unwrap();
        for how in [
            Do::SwallowReply(Then::Reset),
            Do::CutReply(3, Then::Close),
            Do::GarbleReply(b"-ERR what\r\n".to_vec()),
            Do::GarbleReply(b"HTTP/1.1 400\r\n\r\n".to_vec()),
        ] {
            for pick in [true, false] {
                let fault = if pick {
                    world.proxy.kill(Which::All, Then::Reset);
                    world.proxy.next(verb("AUTH"), how.clone())
                } else {
                    world.proxy.next(about("other"), how.clone())
                };
                let bitten = eventually(LONG, || {
                    let outcome =
                        client.get_lock("other").try_lock().and_then(|_| client.get_lock("other").unlock());
                    said.outcome(&outcome);
                    fault.hits() > 0
                });
                assert!(bitten, "{how:?} affected no request");
                let well = || {
                    client
                        .get_lock("other")
                        .try_lock()
                        .and_then(|_| client.get_lock("other").unlock())
                        .is_ok()
                };
                assert!(eventually(LONG, well), "the client does not recover from {how:?}");
            }
            world.is_given_back("other", 2 * L);
        }
        world.does(&["ACL", "SETUSER", "locks", "resetpass", ">another"]);
        world.does(&["CLIENT", "KILL", "USER", "locks"]);
        assert_eq!(said.error(&client.get_lock("other").lock().unwrap_err()), ErrorKind::Authentication);
        throughout(R, || guard.check().is_ok());
        seen.wait_for("the renewal's failure", |event| matches!(event, Event::RenewalFailed(..)));
        drop(guard);
        seen.wait_for("the release's failure", |event| matches!(event, Event::ReleaseFailed(..)));
        said.add(client.shutdown().map_or_else(|error| texts(&error), |()| "shut down".to_owned()));
        said.add(format!("{:?}", seen.events()));
        said.assert_silent();
    });
}

impl super::world::World {
    fn direct_as(&self, password: &str) -> LockClient {
        self.builder_to(&self.server.url()).username("locks").password(password).build().unwrap()
    }
}

#[test]
fn no_refused_connect_shows_the_password() {
    alone(|| {
        let mut said = Said::default();
        let build = |url: &str| LockClient::builder().url(url).connect_timeout(T).command_timeout(T).build();
        for url in [
            format!("redis://locks:{PASSWORD}@127.0.0.1:1/"),
            format!("redis://locks:{PASSWORD}@127.0.0.1:99999/"),
            format!("redis://locks:{PASSWORD}@127.0.0.1:1/database"),
            format!("redis://locks:{PASSWORD}@no host at all/"),
            format!("redis://locks:{PASSWORD}@[::1/"),
            format!("redis://locks:{PASSWORD}@host.invalid:6379/"),
            format!("http://locks:{PASSWORD}@127.0.0.1/"),
            format!("redis//locks:{PASSWORD}@127.0.0.1/"),
            format!("rediss://locks:{PASSWORD}@127.0.0.1:1/"),
            format!("redis+unix:///nowhere/{}?user=locks&pass={PASSWORD}", "socket"),
            format!("locks:{PASSWORD}@127.0.0.1"),
            format!("redis://:{PASSWORD}%zz@127.0.0.1:1/"),
        ] {
            said.error(&build(&url).unwrap_err());
            said.error(&LockClient::connect(&url).unwrap_err());
        }
        for reply in [
            format!("-ERR unknown command 'AUTH', with args beginning with: 'locks' '{PASSWORD}' \r\n"),
            format!("-WRONGPASS {PASSWORD} is no password of locks\r\n"),
            format!("-NOAUTH {PASSWORD}\r\n"),
            format!("+{PASSWORD}\r\n"),
            format!("${}\r\n{PASSWORD}\r\n", PASSWORD.len()),
            format!("!{PASSWORD}\r\n"),
            format!("HTTP/1.1 400 AUTH locks {PASSWORD}\r\n\r\n"),
        ] {
            let server = saying(reply.repeat(2).into_bytes());
            let url = format!("redis://locks:{PASSWORD}@{}/", server.address);
            said.error(&build(&url).unwrap_err());
        }
        let builder = LockClient::builder().url("redis://h/").username("locks").password(PASSWORD);
        said.add(format!("{builder:?} {builder:#?}"));
        said.error(&builder.lease(Duration::ZERO).build().unwrap_err());
        said.assert_silent();
    });
}
