//! `elect` runs a command while its process is the leader.

use rustix::process::Signal;

use crate::world::{Run, Server, Stamper, children, eventually, signal, stamps};

fn candidate(server: &Server, file: &str, options: &[&str]) -> Run {
    let arguments = [&["elect", "-v", "--lease", "2s"][..], options, &["led"]].concat();
    let file = server.path(file);
    let stamper = Stamper { file: &file, ignores_term: true, once: false };
    Run::start(stamper.under(&mut server.leasehold(&arguments)))
}

fn leads(server: &Server, file: &str) -> bool {
    !stamps(&server.path(file)).is_empty()
}

fn came_after(server: &Server, first: &str, second: &str) {
    let (first, second) = (stamps(&server.path(first)), stamps(&server.path(second)));
    assert!(first.last().unwrap() < second.first().unwrap(), "both commands ran at one time");
}

#[test]
fn new_leaders_start_their_command_after_the_former_command_ended() {
    for strike in [Signal::KILL, Signal::STOP] {
        let server = Server::start();
        let first = candidate(&server, "first", &[]);
        eventually("the first leads", || leads(&server, "first"));
        let _second = candidate(&server, "second", &[]);
        signal(first.pid(), strike);
        eventually("the second leads", || leads(&server, "second"));
        came_after(&server, "first", "second");
        if strike == Signal::STOP {
            signal(first.pid(), Signal::CONT);
        }
    }
}

#[test]
fn a_leader_that_lost_its_lock_stands_for_election_again() {
    let server = Server::start();
    let file = server.path("leader");
    let stamper = Stamper { file: &file, ignores_term: false, once: false };
    let mut leader = Run::start(stamper.under(&mut server.leasehold(&["elect", "--lease", "2s", "led"])));
    eventually("the candidate leads", || leads(&server, "leader"));
    let helper = children(leader.pid())[0];
    server.ask(&["DEL", "led"]);
    eventually("the leader's command was ended, and another began", || {
        children(leader.pid()).first().is_some_and(|now| *now != helper && !children(*now).is_empty())
    });
    leader.terminate();
    assert_eq!(server.keys(), Vec::<String>::new());
}

#[test]
fn with_one_term_elect_exits_when_its_lock_is_lost() {
    let server = Server::start();
    let mut leader = candidate(&server, "leader", &["--one-term"]);
    eventually("the candidate leads", || leads(&server, "leader"));
    server.ask(&["DEL", "led"]);
    assert_eq!(leader.wait().code(), Some(79));
}

#[test]
fn a_signal_ends_a_former_leader_that_waits_again() {
    let server = Server::start();
    let mut first = candidate(&server, "first", &[]);
    eventually("the first leads", || leads(&server, "first"));
    let second = candidate(&server, "second", &[]);
    eventually("the second waits", || server.queue_length("led") == 1);
    assert_eq!(server.outcome(&["force", "led", "--yes"]).0, 0);
    eventually("the second leads", || leads(&server, "second"));
    eventually("the first waits", || server.queue_length("led") == 1);
    assert_eq!(first.terminate(), Some(128 + 15));
    eventually("the waiter's queue place is gone", || server.queue_length("led") == 0);
    drop(second);
}

#[test]
fn a_command_that_ends_by_itself_ends_the_candidacy() {
    let server = Server::start();
    let (code, _) = server.outcome(&["elect", "led", "--", "sh", "-c", "exit 6"]);
    assert_eq!((code, server.keys()), (6, Vec::new()));
    let busy = server.begin(&["elect", "led", "--", "sleep", "60"]);
    eventually("the candidate leads", || server.keys().contains(&"led".to_owned()));
    assert_eq!(server.outcome(&["elect", "-n", "led", "--", "true"]).0, 75);
    assert_eq!(server.outcome(&["elect", "-w", "0.1", "led", "--", "true"]).0, 75);
    drop(busy);
}

#[test]
fn library_and_program_candidates_share_an_election() {
    let server = Server::start();
    let mut leader = server.begin(&["elect", "led", "--", "sleep", "60"]);
    eventually("the candidate leads", || server.keys().contains(&"led".to_owned()));
    let client = leasehold::LockClient::connect(server.url()).unwrap();
    let candidate = client.leader("led").unwrap();
    eventually("the library's waits", || server.queue_length("led") == 1);
    assert_eq!(candidate.term(), None);
    assert_eq!(leader.terminate(), Some(128 + 15));
    let event = candidate.events().recv_timeout(crate::world::LIMIT).unwrap();
    assert!(matches!(event, leasehold::LeaderEvent::Elected { .. }), "{event:?}");
    candidate.withdraw().unwrap();
}

#[test]
fn after_a_refused_login_elect_rereads_leasehold_url_file() {
    reads_again(|config| ("LEASEHOLD_URL_FILE", config.join("leasehold/url")));
}

#[test]
fn after_a_refused_login_elect_rereads_the_default_url_file() {
    reads_again(|config| ("XDG_CONFIG_HOME", config.to_owned()));
}

fn reads_again(named: fn(&std::path::Path) -> (&'static str, std::path::PathBuf)) {
    let server = Server::start();
    let config = server.path("config");
    std::fs::create_dir_all(config.join("leasehold")).unwrap();
    let set = |word: &str| {
        let url = server.url().replace("redis://", &format!("redis://user:{word}@"));
        std::fs::write(config.join("leasehold/url"), url).unwrap();
        server.ask(&["ACL", "SETUSER", "user", "on", "resetpass", &format!(">{word}"), "~*", "&*", "+@all"]);
    };
    set("old");
    let errors = server.path("errors");
    let mut run = server.leasehold(&["elect", "--lease", "1s", "led", "--", "sleep", "60"]);
    let (variable, file) = named(&config);
    run.env_remove("LEASEHOLD_URL").env(variable, file);
    let mut run = Run(run.stderr(std::fs::File::create(&errors).unwrap()).spawn().unwrap());
    let leads = || server.keys().contains(&"led".to_owned());
    let said = || std::fs::read_to_string(&errors).unwrap();
    eventually("the candidate leads", leads);
    // A changed password affects only new connections, so the test breaks the open ones.
    for word in ["new", "newer"] {
        set(word);
        server.ask(&["CLIENT", "KILL", "USER", "user"]);
        eventually("the program reads the file again", || {
            server.ask(&["CLIENT", "LIST"]).contains("user=user")
        });
        assert!(leads(), "{}", said());
    }
    server.ask(&["ACL", "SETUSER", "user", "resetpass", ">other"]);
    server.ask(&["CLIENT", "KILL", "USER", "user"]);
    assert_eq!(run.wait().code(), Some(77), "{}", said());
    assert!(!said().contains("newer"), "{}", said());
}

/// Candidates beyond the three have one connection each, and poll once in a third of a lease.
#[test]
fn of_a_fleet_only_three_candidates_queue_and_subscribe() {
    let server = Server::start();
    let led = || std::fs::read_to_string(server.path("led")).unwrap_or_default().lines().count();
    let candidate = || {
        let command = ["elect", "-q", "led", "--", "sh", "-c", "echo >> \"$0\"; exec sleep 600"];
        Run::start(server.connected(&command).arg(server.path("led")))
    };
    let mut leader = candidate();
    eventually("the candidate leads", || led() == 1);
    let _others: Vec<Run> = (0..6).map(|_| candidate()).collect();
    eventually("six wait", || server.outcome(&["clients"]).1.matches("waits for led").count() == 6);
    let stand = || server.queue_length("led") == 3;
    let subscribed = |client: &str| client.contains(" sub=") && !client.contains(" sub=0 ");
    let listen = || server.ask(&["CLIENT", "LIST"]).lines().filter(|one| subscribed(one)).count();
    eventually("three listen", || stand() && listen() == 3);
    leader.terminate();
    eventually("another candidate leads, and three wait", || led() == 2 && stand() && listen() == 3);
}
