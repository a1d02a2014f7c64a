//! Real Redisson in a JVM of its own. Maven builds the program in `tests/interop/java` on its first use.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::agent::{Agent, Peer};
use parking_lot::MutexGuard;

use crate::scene::{alone, build_once, source};
use crate::support::prelude::*;

pub(crate) fn start() -> Option<Arc<Agent>> {
    let jar = jar()?;
    let mut java = Command::new("java");
    java.args(["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData", "-Xmx256m", "-jar"])
        .arg(jar);
    Agent::start_or_reuse("Redisson", &mut java)
}

pub(crate) fn connect(url: &str, watchdog: Duration) -> Option<Peer> {
    Some(client(&start()?, "redisson", url, watchdog))
}

/// The guard of a mutex that lets no other test run, a server, and a JVM with one Redisson client.
pub(crate) fn set_up(watchdog: Duration) -> Option<(MutexGuard<'static, ()>, RedisServer, Peer)> {
    let alone = alone();
    let server = RedisServer::start_default()?;
    let java = connect(&server.url(), watchdog)?;
    Some((alone, server, java))
}

pub(crate) fn client(agent: &Arc<Agent>, name: &str, url: &str, watchdog: Duration) -> Peer {
    agent.connect(name, url, &[&watchdog.as_millis().to_string()])
}

pub(crate) fn client_with_fair_wait(
    agent: &Arc<Agent>,
    name: &str,
    url: &str,
    watchdog: Duration,
    fair_wait: Duration,
) -> Peer {
    let [watchdog, fair_wait] = [watchdog, fair_wait].map(|time| time.as_millis().to_string());
    agent.connect(name, url, &[&watchdog, "", "", &fair_wait])
}

pub(crate) fn connect_to_cluster(url: &str, watchdog: Duration, mode: &str) -> Option<Peer> {
    Some(start()?.connect("redisson", url, &[&watchdog.as_millis().to_string(), mode]))
}

fn jar() -> Option<PathBuf> {
    let project = source("java");
    let jar = project.join("target/agent.jar");
    let made_of = [
        project.join("pom.xml"),
        project.join("src/main/java/leasehold/interop/Agent.java"),
        project.join("src/main/resources/simplelogger.properties"),
    ];
    build_once("Redisson by Maven", &jar, &made_of.each_ref().map(PathBuf::as_path), || {
        vec![package(&project)]
    })
}

fn package(project: &Path) -> Command {
    let mut maven = Command::new("mvn");
    maven.args(["-q", "-B", "package"]).current_dir(project);
    maven
}
