//! `elect --listen` answers over HTTP whether this process is the leader.

use std::io::Write;
use std::net::TcpListener;

use rustix::process::{Pid, Signal, kill_process};

use crate::serve::make_lock;
use crate::site::{Answer, Site, answer};
use crate::world::{Server, Stamper, children, ends, eventually, leasehold, now, outcome, signal, stamps};

fn candidate(server: &Server, file: &str, options: &[&str]) -> Site {
    let arguments = [&["--format", "json", "elect", "--listen", "0"][..], options, &["led"]].concat();
    let file = server.path(file);
    let stamper = Stamper { file: &file, ignores_term: true, once: false };
    Site::with(stamper.under(&mut server.leasehold(&arguments)))
}

struct Tolerant(Site);

impl Tolerant {
    fn start(server: &Server, file: &str, lease: &str) -> Tolerant {
        Tolerant(candidate(server, file, &["--lease", lease, "--on-lost", "ignore"]))
    }
}

impl Drop for Tolerant {
    fn drop(&mut self) {
        for command in children(self.0.pid()).into_iter().flat_map(children) {
            if let Some(pid) = i32::try_from(command).ok().and_then(Pid::from_raw) {
                kill_process(pid, Signal::KILL).ok();
            }
        }
    }
}

fn leads(site: &Site) -> bool {
    site.get("/leader").status == 200
}

fn number(answer: &Answer, word: &str) -> u64 {
    let line = answer.body.lines().find_map(|line| line.strip_prefix(word));
    line.unwrap_or_else(|| panic!("{}", answer.body)).trim().parse().unwrap()
}

#[test]
fn only_the_leader_says_that_it_leads() {
    let server = Server::start();
    let first = candidate(&server, "first", &["--lease", "3s"]);
    eventually("the first leads", || leads(&first));
    assert!(first.address.ip().is_loopback(), "{}", first.address);
    let second = candidate(&server, "second", &["--lease", "3s"]);
    eventually("both are ready", || [&first, &second].iter().all(|site| site.get("/ready").status == 200));
    let (leader, other) = (first.get("/leader"), second.get("/leader"));
    assert_eq!((leader.status, other.status, &*other.body), (200, 503, "does not lead\n"));
    let shown = server.json(&["show", "led"]);
    let term = number(&leader, "term ");
    assert_eq!(shown["fence"].as_u64(), Some(term), "{shown}");
    assert!(number(&leader, "left_ms ") <= 3000, "{}", leader.body);

    let head = first.ask("HEAD", "/leader", "any.example");
    assert_eq!((head.status, &*head.body), (200, ""));
    assert_eq!((first.get("/").status, first.ask("POST", "/leader", "a").status), (404, 405));

    signal(first.pid(), Signal::KILL);
    eventually("the second leads", || leads(&second));
    assert!(number(&second.get("/leader"), "term ") > term);
}

/// The command goes on despite the loss, so only the clock tells the resumed process that it leads no more.
#[test]
fn a_resumed_former_leader_answers_that_leadership_has_ended() {
    let server = Server::start();
    let tolerant = Tolerant::start(&server, "first", "2s");
    let first = &tolerant.0;
    eventually("the first leads", || leads(first));
    let second = candidate(&server, "second", &["--lease", "2s"]);
    eventually("the second stands", || second.get("/ready").status == 200);
    signal(first.pid(), Signal::STOP);
    // The system accepts connections for the stopped process, so these requests wait until it continues.
    let mut asked: Vec<_> = (0..8).map(|_| first.connect()).collect();
    for stream in &mut asked {
        stream.write_all(b"GET /leader HTTP/1.0\r\n\r\n").unwrap();
    }
    eventually("the second leads", || leads(&second));
    asked[0].set_nonblocking(true).unwrap();
    assert_eq!(asked[0].peek(&mut [0]).unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
    asked[0].set_nonblocking(false).unwrap();
    signal(first.pid(), Signal::CONT);
    for stream in asked {
        assert_eq!(answer(stream).status, 503);
    }
    assert!(leads(&second));
}

#[test]
fn a_leader_without_its_store_says_503_and_leads_again() {
    let mut server = Server::start();
    let leader = candidate(&server, "leader", &["--lease", "2s"]);
    eventually("the candidate leads and is ready", || leads(&leader) && leader.get("/ready").status == 200);
    server.stop();
    let over = now() + 2_000_000_000;
    eventually("the candidate does not lead", || {
        let (asked, leads) = (now(), leads(&leader));
        assert!(!leads || asked < over, "the leader leads after the end of its lease");
        !leads
    });
    eventually("the candidate says that the store is away", || {
        let answer = leader.get("/ready");
        answer.status == 503 && answer.body.contains("the store does not answer")
    });
    server.start_again();
    eventually("the candidate leads again", || leads(&leader));
    eventually("the candidate is ready", || leader.get("/ready").status == 200);
}

#[test]
fn a_lost_lock_makes_leaders_answer_503_before_lease_end() {
    let server = Server::start();
    let tolerant = Tolerant::start(&server, "leader", "9s");
    let leader = &tolerant.0;
    eventually("the candidate leads", || leads(leader));
    server.ask(&["DEL", "led"]);
    make_lock(&server, "led");
    let asked = now();
    let left = number(&leader.get("/leader"), "left_ms ") * 1_000_000;
    eventually("the candidate does not lead", || !leads(leader));
    assert!(now() < asked + left, "the leader reported its end only after the lease");
    assert_eq!(leader.get("/ready").body, "the command is being ended\n");
    let before = stamps(&server.path("leader")).len();
    eventually("the command goes on", || stamps(&server.path("leader")).len() > before);
}

#[test]
fn a_candidate_answers_http_requests_while_its_store_is_down() {
    let mut server = Server::start();
    server.stop();
    let candidate = candidate(&server, "candidate", &[]);
    let (leader, ready) = (candidate.get("/leader"), candidate.get("/ready"));
    assert_eq!((leader.status, ready.status), (503, 503));
    assert_eq!(ready.body, "the store has not answered yet\n");
    server.start_again();
    eventually("the candidate leads", || leads(&candidate));
}

#[test]
fn elect_refuses_an_address_in_use_before_the_election() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    // `elect` waits for an absent store, so it ends here only if it checks the address first.
    let mut run = leasehold(&["elect", "--listen", &port, "led", "--", "true"]);
    let said = ends(run.env("LEASEHOLD_URL", "redis://127.0.0.1:1"), 70, "");
    assert!(said.starts_with(&format!("leasehold: cannot listen on 127.0.0.1:{port}: ")), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
    let (code, _) = outcome(&mut leasehold(&["elect", "--listen", ":9478", "led", "--", "true"]));
    assert_eq!(code, 64);
}
