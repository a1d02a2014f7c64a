//! The parts of help and man pages other than the options: examples, exit codes, variables, files.

use std::path::Path;

use clap::{Command, CommandFactory};
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};

use crate::args::Cli;
use crate::say::{Ended, Exit, Say};

const EXAMPLES: &str = "\
run: leasehold run -n nightly-import ./import.sh
run: leasehold run -w 10m shop-migration -- ./migrate up
run: leasehold run --max-hold 30m --lease 10s deploy-shop ./deploy.sh
once: leasehold once -q -E 0 nightly-report --at-least 10m --at-most 2h /opt/report.sh
elect: leasehold elect --lease 10s --listen 9478 scheduler ./scheduler
hold: hold=$(leasehold hold stock) || exit
hold: ./count --fence \"${hold##*:}\"
hold: leasehold release \"$hold\" || exit
release: leasehold release \"$hold\" || exit
show: leasehold show nightly-import
show: leasehold show -q nightly-import && echo held
ls: leasehold ls 'shop:*' --host db-3
ls: leasehold --format json ls | jq -r .name
clients: leasehold clients
top: leasehold top 'shop:*'
force: leasehold force nightly-import --yes
permits: leasehold permits reports --set 5
doctor: leasehold doctor --strict --lease 10s
watch: leasehold watch nightly-import --for 10m
serve: leasehold serve --job nightly-report
completions: leasehold completions bash >/etc/bash_completion.d/leasehold
man: leasehold man run | man -l -";

/// The exit codes and their meanings, as in the table of docs/command-line.md.
const STATUS: &str = "\
the command's: The command ended by itself.
0: All went well.
1: doctor found a fault; with --strict, or a warning. show -q: nobody holds one of the locks.
64: Arguments that cannot be used, or a kind of lock that the store or the name cannot have.
65: show, force: the name stands for something that is no lock.
69: The store cannot be used: away, read only, out of memory, too old; certificates do not fit.
70: The system refused what the program needs, or somebody killed the helper process.
75: The lock is busy, or the wait ended (-E); force: the lock has another holder by now.
77: The store refuses the user, the password, or an action of the user.
79: The lock was lost, or could not be kept (--lost-exit-code).
80: --strict: the command succeeded, and it is unknown whether the lock was released.
81: The command had to end, and one of its processes may go on without the lock.
124: --max-hold or --at-most ended the command.
126: The command cannot be run.
127: The command is not there.
128 + n: Signal n ended the command, the wait or watch.";

const ENVIRONMENT: &str = "\
LEASEHOLD_URL: The store's URL.
LEASEHOLD_TLS_CA: The authorities to trust, a PEM file.
LEASEHOLD_TLS_CERT, LEASEHOLD_TLS_KEY: The client certificate and its private key, PEM files.
LEASEHOLD_USERNAME, LEASEHOLD_PASSWORD: The user; they go before those of the URL.
LEASEHOLD_SENTINEL_USERNAME, LEASEHOLD_SENTINEL_PASSWORD: The user on the Sentinels themselves.
LEASEHOLD_REDLOCK: In place of a URL: the URLs of the servers of a Redlock.
LEASEHOLD_NODE_TIMEOUT: How long one of these may take; default 50ms.
LEASEHOLD_RING: In place of a URL: the URLs of the servers of a ring.
LEASEHOLD_RING_EPOCH, LEASEHOLD_RING_FROM: The number of that list, and the servers of the list before.
LEASEHOLD_URL_FILE, LEASEHOLD_PASSWORD_FILE, LEASEHOLD_SENTINEL_PASSWORD_FILE, LEASEHOLD_REDLOCK_FILE, LEASEHOLD_RING_FILE, LEASEHOLD_RING_FROM_FILE: A file whose text is the value of the variable without _FILE.
LEASEHOLD_ALLOWED_HOSTS: The hosts to which a cluster or Sentinels may send the client.
LEASEHOLD_DATABASE: The number of a Redis database.
LEASEHOLD_TABLE: The table of a database.
LEASEHOLD_CREATE_SCHEMA: yes creates that table.
LEASEHOLD_SESSION_LOCKS, LEASEHOLD_DESIGNATED_POLLER: Switches of databases.
LEASEHOLD_KEY_PREFIX: A prefix of all names.
LEASEHOLD_LEASE: How long a lock outlives a dead machine; default 30s.
LEASEHOLD_COMMAND_TIMEOUT, LEASEHOLD_CONNECT_TIMEOUT: How long a request, and connecting, may take; default 3s each.
LEASEHOLD_RETRY_TIMEOUT: How long a store that is away is tried; default 10s.
LEASEHOLD_LABEL, LEASEHOLD_CLIENT_NAME: A name for this run; the name of its connections.
LEASEHOLD_UNDER: The owners of the holds under which the program works.
LEASEHOLD_DIRECTORY: no leaves host and process out of the store.
LEASEHOLD_POOL_SIZE, LEASEHOLD_UNSUBSCRIBE_DELAY, LEASEHOLD_CLUSTER_PUB_SUB: Options of the connections.
LEASEHOLD_REPLICAS: How many replicas must have each grant, and within which time (1 100ms); no: none, also with Sentinels and a cluster, where the default is one of those connected, within 1s.
LEASEHOLD_DURABLE: In how many files each grant must be, as \"1 1\": the server's own, and the replicas' (Redis 7.2, Valkey).";

const FILES: &str = "\
$XDG_CONFIG_HOME/leasehold/url, /etc/leasehold/url: The URL of the store where no variable and no option names one: the first of these that is there. XDG_CONFIG_HOME is ~/.config unless set. Lines that begin with # are comments.
$XDG_RUNTIME_DIR/leasehold: The sockets of hold; without the variable leasehold-UID in the folder for temporary files, or /run/leasehold (/run/user/UID/leasehold) where another has made that one.";

pub(crate) fn command() -> Command {
    let first = examples(&["run", "once", "elect"]).collect::<Vec<_>>().join("\n  ");
    let words = format!("`leasehold help run`, or of another command, tells more.\n\nExamples:\n  {first}");
    Cli::command().after_help(words).mut_subcommands(|one| {
        let lines = examples(&[one.get_name()]).collect::<Vec<_>>().join("\n  ");
        one.after_help(format!("Examples:\n  {lines}"))
    })
}

fn entries(table: &str) -> impl Iterator<Item = (&str, &str)> {
    table.lines().filter_map(|line| line.split_once(": "))
}

fn examples(commands: &[&str]) -> impl Iterator<Item = &'static str> {
    entries(EXAMPLES).filter(move |(name, _)| commands.contains(name)).map(|(_, line)| line)
}

pub(crate) fn man(name: Option<&str>, to: Option<&Path>) -> Ended {
    let say = Say::plain();
    let mut all = command().disable_help_subcommand(true);
    all.build();
    let Some(to) = to else {
        let unknown = |name: &str| say.error(&format!("there is no command {name}"), Exit::Usage);
        let asked = name.map_or(Ok(&all), |name| all.find_subcommand(name).ok_or_else(|| unknown(name)))?;
        return page(asked, &all).map_or(Err(Exit::Internal), |page| Ok(crate::print(&page)));
    };
    let write = |one: &Command| {
        let file = to.join(format!("{}.1", one.get_display_name().unwrap_or("leasehold")));
        std::fs::write(file, page(one, &all)?)
    };
    let mut pages = std::iter::once(&all).chain(all.get_subcommands());
    let written = std::fs::create_dir_all(to).and_then(|()| pages.try_for_each(write));
    written.map_err(|error| say.internal(&format!("{} cannot be written to", to.display()), &error))?;
    Ok(Exit::Success)
}

fn page(one: &Command, all: &Command) -> std::io::Result<Vec<u8>> {
    let (man, mut text) = (Man::new(one.clone()), Vec::new());
    man.render_title(&mut text)?;
    man.render_name_section(&mut text)?;
    let usage = one.clone().render_usage().to_string();
    let mut synopsis = Roff::new();
    synopsis.control("SH", ["SYNOPSIS"]).text([roman(usage.trim_start_matches("Usage: "))]);
    synopsis.to_writer(&mut text)?;
    man.render_description_section(&mut text)?;
    man.render_options_section(&mut text)?;
    if one.has_subcommands() {
        man.render_subcommands_section(&mut text)?;
    }
    let mut rest = Roff::new();
    rest.control("SH", ["EXAMPLES"]).control("nf", []);
    for (name, line) in entries(EXAMPLES) {
        if name == one.get_name() || one.has_subcommands() {
            rest.text([roman(line)]);
        }
    }
    rest.control("fi", []);
    for (title, table) in [("EXIT STATUS", STATUS), ("ENVIRONMENT", ENVIRONMENT), ("FILES", FILES)] {
        rest.control("SH", [title]);
        for (term, words) in entries(table) {
            rest.control("TP", []).text([bold(term)]).text([roman(words)]);
        }
    }
    let own = one.get_display_name();
    let others = std::iter::once(all).chain(all.get_subcommands()).filter_map(Command::get_display_name);
    let others: Vec<String> =
        others.filter(|name| Some(*name) != own).map(|name| format!("{name}(1)")).collect();
    rest.control("SH", ["SEE ALSO"]).text([roman(others.join(", "))]);
    rest.to_writer(&mut text)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_help_example_parses() {
        for (name, line) in entries(EXAMPLES).filter(|(_, line)| line.contains("leasehold ")) {
            let line = line.split("leasehold ").nth(1).unwrap();
            let end = line.find([')', '|', '>']).unwrap_or(line.len());
            let line = line[..end].split(" && ").next().unwrap();
            let words = line.split_whitespace().map(|word| word.trim_matches(['\'', '"']));
            let read = Cli::read_from(std::iter::once("leasehold").chain(words));
            assert!(read.is_ok(), "{name}: {line}: {}", read.err().unwrap());
        }
    }
}
